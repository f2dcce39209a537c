"""Options of methods and training objectives: declared in dataclasses, checked, and read and written as text.

In a dataclass, `percentile: float = percent(85.0)` declares an option with its default and its check. As text, a method is
`name` or `name(option=value, ...)`.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import field, fields, is_dataclass
from functools import partial
from typing import Any, TypeVar

from idness.core.errors import InputError, OptionError

T = TypeVar("T")
Check = Callable[[object, str], None]
"""Raises unless an option, given by its owner and name, has an allowed value."""
METHOD = re.compile(r"([\w./\\:-]+)\s*(?:\((.*)\))?", re.DOTALL)
OPENING, CLOSING = "([{", ")]}"


def _number(wanted: str, fits: Callable[[float], bool]) -> Check:
    def check(owner: object, name: str) -> None:
        value = getattr(owner, name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
        if not is_number or not fits(value):
            needs = wanted if is_number else "a number"
            raise OptionError(f"{owner_name(owner)}: {name} must be {needs}, got {value!r}")

    return check


check_positive = _number("above 0", lambda value: 0 < value < math.inf)
check_nonnegative = _number("0 or more", lambda value: 0 <= value < math.inf)
check_share = _number("in [0, 1)", lambda value: 0 <= value < 1)
check_count = _number("a whole number of at least 1", lambda value: isinstance(value, int) and value >= 1)
_check_percentage = _number("in [0, 100)", lambda value: 0 <= value < 100)


def check_percent(owner: object, name: str) -> None:
    """Raise unless an option is a percentage in [0, 100); the message for a fraction suggests the percentage."""
    _check_percentage(owner, name)
    if 0 < (value := getattr(owner, name)) < 1:
        raise OptionError(f"{owner_name(owner)}: {name} is in percent, got {value:g}; did you mean {value * 100:g}?")


def check_fraction(owner: object, name: str, value: float) -> None:
    """Raise unless an argument is strictly between 0 and 1."""
    if not isinstance(value, int | float) or not 0 < value < 1:
        hint = f"; did you mean {value / 100:g}?" if isinstance(value, int | float) and 1 < value < 100 else ""
        raise OptionError(f"{owner_name(owner)}: {name} must be in (0, 1), got {value!r}{hint}")


def check_at_most_images(owner: object, name: str, images: int) -> None:
    """Raise if an option counts more neighbours or clusters than there are training images."""
    if (value := getattr(owner, name)) > images:
        most = f"at most the number of training images ({images})"
        raise InputError(f"{owner_name(owner)}: {name} must be {most}, got {value}")


def check_options(owner: object) -> None:
    """Check the options that a dataclass and its bases declare with the functions below."""
    for kind in filter(is_dataclass, type(owner).__mro__):
        for option in fields(kind):
            if "check" in option.metadata:
                option.metadata["check"](owner, option.name)


def _declare(default: T, check: Check) -> T:
    return field(default=default, metadata={"check": check})


percent: Callable[[float], float] = partial(_declare, check=check_percent)
"""Declare an option that is a percentage in [0, 100)."""
positive: Callable[[float], float] = partial(_declare, check=check_positive)
"""Declare an option that is a finite number above 0."""
nonnegative: Callable[[float], float] = partial(_declare, check=check_nonnegative)
"""Declare an option that is a finite number of at least 0."""
count: Callable[[int], int] = partial(_declare, check=check_count)
"""Declare an option that is a whole number of at least 1."""


def one_of(default: str, *others: str) -> str:
    """Declare an option that is one of a few words, the first by default."""
    choices = (default, *others)

    def check(owner: object, name: str) -> None:
        if (value := getattr(owner, name)) not in choices:
            raise OptionError(f"{owner_name(owner)}: {name} must be one of {', '.join(choices)}; got {value!r}")

    return _declare(default, check)


def owner_name(owner: object) -> str:
    """Return the name of an object's class for a message; a string is returned as it is."""
    return owner if isinstance(owner, str) else type(owner).__name__


def split_methods(text: str, between: str = ",") -> list[str]:
    """Split a text at the commas between methods, or at another character, but not within brackets."""
    parts, depth = [""], 0
    for char in text:
        depth += (char in OPENING) - (char in CLOSING)
        if depth < 0:
            raise _unreadable(text)
        if char == between and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    if depth:
        raise _unreadable(text)
    return [part.strip() for part in parts if part.strip()]


def read_method(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the options of a method; a value that is not a Python literal is a string."""
    match = METHOD.fullmatch(text.strip())
    if match is None:
        raise _unreadable(text)
    return match[1], read_options(match[2] or "", text)


def read_options(listed: str, whole: str) -> dict[str, Any]:
    """Read `option=value, ...`; errors show the whole text that it is part of."""
    return dict(read_option(item, whole) for item in split_methods(listed))


def read_option(item: str, whole: str) -> tuple[str, Any]:
    """Return the name and the value of one `option=value`."""
    key, equals, value = (part.strip() for part in item.partition("="))
    if not equals or not key.isidentifier():
        raise _unreadable(whole)
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


def write_method(name: str, options: Mapping[str, Any]) -> str:
    """Return a method as the text that `read_method` reads."""
    return f"{name}({write_options(options)})" if options else name


def write_options(options: Mapping[str, Any]) -> str:
    """Return options as the text that `read_options` reads."""
    return ", ".join(f"{key}={plain(value)}" for key, value in options.items())


def plain(value: Any) -> str:
    """Return the value of an option as text, whole numbers without a decimal point."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _unreadable(text: str) -> OptionError:
    return OptionError(f"expected name or name(option=value, ...), got {text!r}")

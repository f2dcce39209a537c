"""Reads and writes methods as people do, such as `msp, ash(variant=s, percentile=95)`; nothing else knows how they are written."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from idness.core.errors import OptionError

METHOD = re.compile(r"([\w./\\:-]+)\s*(?:\((.*)\))?", re.DOTALL)
OPENING, CLOSING = "([{", ")]}"


def split_methods(text: str, between: str = ",") -> list[str]:
    """Split at the commas between methods, or at another sign such as a chain's `+`; what is in brackets stays whole."""
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
    """Give the name and the options of one method; a value that is no Python literal is a word, such as a variant's letter."""
    match = METHOD.fullmatch(text.strip())
    if match is None:
        raise _unreadable(text)
    return match[1], read_options(match[2] or "", text)


def read_options(listed: str, whole: str) -> dict[str, Any]:
    """Read `option=value, ...`, which stands in brackets in a whole text that errors show."""
    options: dict[str, Any] = {}
    for item in split_methods(listed):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not key.isidentifier():
            raise _unreadable(whole)
        try:
            options[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[key] = value
    return options


def write_method(name: str, options: Mapping[str, Any]) -> str:
    """Write a method as it is read."""
    listed = write_options(options)
    return f"{name}({listed})" if listed else name


def write_options(options: Mapping[str, Any]) -> str:
    """Write options as they are read."""
    return ", ".join(f"{key}={plain(value)}" for key, value in options.items())


def plain(value: Any) -> str:
    """Write the value of an option; whole numbers without their point."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _unreadable(text: str) -> OptionError:
    return OptionError(f"a method is written as name or name(option=value, ...), got {text!r}")

"""Finds methods by name: ours, and those that installed packages offer under the entry-point group `idness.methods`."""

from __future__ import annotations

import ast
import dataclasses
import re
from importlib.metadata import entry_points
from typing import Any

from idness.core.errors import IdnessError, OptionError, unknown_name
from idness.detectors.detector import Detector

GROUP = "idness.methods"
SPEC = re.compile(r"\s*([\w-]+)\s*(?:\((.*)\))?\s*", re.DOTALL)


def available() -> dict[str, type[Detector]]:
    """Give every method by name: ours, then those of other installed packages."""
    from idness import methods

    found: dict[str, type[Detector]] = {name.lower(): getattr(methods, name) for name in methods.__all__}
    for point in entry_points(group=GROUP):
        cls: Any = point.load()
        if not _is_method(cls):
            raise IdnessError(
                f"entry point {point.name!r} of {GROUP} must be a dataclass that extends Detector, got {cls!r}; fix or uninstall it"
            )
        if found.setdefault(cls.__name__.lower(), cls) is not cls:
            raise IdnessError(
                f"entry point {point.name!r} of {GROUP} must have a name of its own, got {cls.__name__.lower()!r}, which is taken"
            )
    return found


def rows() -> dict[str, Detector]:
    """Give every row of a comparison by name: a method at its defaults, or each of its variants (`ash-s`, `ash-p`, `ash-b`)."""
    found: dict[str, Detector] = {}
    for name, cls in available().items():
        for row, fixed in (cls.rows or {name: {}}).items():
            found[row] = cls(**fixed)
    return found


def build(name: str, **options: Any) -> Detector:
    """Make a detector by name, as in `build("scale", percentile=95)`; `ash-s` is `ash` with its variant set."""
    known = available()
    key = name.lower()
    fixed: dict[str, Any] = {}
    for method in known.values():
        if key in method.rows:
            key, fixed = method.__name__.lower(), dict(method.rows[key])
    if key not in known:
        raise unknown_name("method", name, [*known, *rows()])
    cls = known[key]
    allowed = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    for option in options:
        if option not in allowed:
            takes = f"it takes {', '.join(allowed)}" if allowed else "it takes none"
            raise OptionError(f"{cls.__name__}: unknown option {option!r}; {takes}")
    return cls(**(fixed | options))


def parse(text: str) -> Detector:
    """Make a detector from text such as `scale`, `scale(percentile=95)` or `ash(variant=s, percentile=90)`."""
    match = SPEC.fullmatch(text)
    if match is None:
        raise OptionError(f"a method is written as name or name(option=value, ...), got {text!r}")
    options: dict[str, Any] = {}
    for item in _items(match[2] or ""):
        key, equals, value = item.partition("=")
        if not equals:
            raise OptionError(f"options are written option=value, got {item.strip()!r} in {text!r}")
        options[key.strip()] = _value(value.strip())
    return build(match[1], **options)


def _is_method(cls: object) -> bool:
    return isinstance(cls, type) and issubclass(cls, Detector) and dataclasses.is_dataclass(cls)


def _items(text: str) -> list[str]:
    """Split at commas outside parentheses."""
    parts, depth = [""], 0
    for char in text:
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part for part in parts if part.strip()]


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text  # a bare word, such as a variant's letter

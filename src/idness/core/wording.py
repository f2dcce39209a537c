"""How names and numbers are shown: short, safe in any page or picture, the same everywhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufffe\uffff\ud800-\udfff]+")
LONGEST = 40
FOLDERS = re.compile(r"""(?<![^\s'",(=])/(?:[^/'",()=]+/)*(?=[^/\s'",()=])""")
"""The folders of an absolute path: at the beginning of a text, or after what sets values apart, as in `--data=/images`."""

SECRET_USER = re.compile(
    r"""(?<=://)(?:[^\s/'"]+@|(?![^\s/:@]+:\d+/)[^\s/:@]+:[^\s@'"]+@|[^\s/:@[]+:(?!\d+(?:/|$))[^\s/'"]+(?=/|$))"""
)
"""The user name and password of a URL, also one with a slash that should be encoded, or cut off there; not a host and a port."""
SECRET_VALUE = re.compile(
    r"""([?&][^=&\s]*(?:key|secret|token|sig|pass|pwd|cred|auth)[^=&\s]*=)[^&\s'")]+""", re.IGNORECASE
)
"""A value in a URL's query whose name says that it is secret."""


def shown(name: object, longest: int = LONGEST) -> str:
    """Give a name without control and direction characters, cut to a length that a table can hold."""
    text = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", str(name))
    return text if len(text) <= longest else text[: longest - 1] + "…"


def drawn(name: object, longest: int = 24) -> str:
    """Give a name for a picture, where a dollar would start a formula."""
    return shown(name, longest).replace("\\", "\N{FULLWIDTH REVERSE SOLIDUS}").replace("$", r"\$")


def percent(value: float | None, digits: int = 2) -> str:
    """Write a share as a percentage without its sign; a dash where it is not known."""
    return "–" if value is None else f"{100 * value:.{digits}f}"


def points(value: float, digits: int = 2) -> str:
    """Write a difference in percentage points, always with its sign."""
    text = f"{100 * value:+.{digits}f}"
    # No negative zero: -0.00 reads as if it were less than nothing.
    return (text if float(text) != 0 else f"±{abs(float(text)):.{digits}f}").replace("-", "−")


def duration(seconds: float) -> str:
    """Write a time as a person would say it."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def size(count: float) -> str:
    """Write bytes in the unit that suits."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if count >= 10 or unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def sentence(text: str) -> str:
    """Begin with a capital and leave the rest as it is: ID stays ID."""
    return text[:1].upper() + text[1:]


def abridged(names: Sequence[str], most: int = 5) -> str:
    """Join the first few names, with dots where there are more."""
    return ", ".join([*(shown(name) for name in names[:most]), *(["..."] if len(names) > most else [])])


def listed(names: list[str]) -> str:
    """Join names as a sentence does."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def masked(text: object) -> str:
    """Replace the user name, password and keys of URLs in a text by asterisks."""
    return SECRET_VALUE.sub(r"\1***", SECRET_USER.sub("***@", str(text)))


def readable(name: str) -> str:
    r"""Return a file name as text that can be written anywhere; bytes that are not UTF-8 become `\xff` and the like."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def without_folder(text: str) -> str:
    """Remove the folders of absolute paths and the secrets of URLs from a text, as a report says nothing of its writer's machine."""
    shortened = FOLDERS.sub("", masked(text))
    return Path(shortened).name if Path(shortened).is_absolute() else shortened

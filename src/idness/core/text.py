"""Formatting of names, numbers and URLs: short, safe in a page or figure, and consistent everywhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufffe\uffff\ud800-\udfff]+")
LONGEST = 40
FOLDERS = re.compile(r"""(?<![^\s'",(=])/(?:[^/'",()=]+/)*(?=[^/\s'",()=])""")
"""The folders of an absolute path at the beginning of a text or after a separator, as in `--data=/images`."""
SECRET_USER = re.compile(
    r"""(?<=://)(?:[^\s/'"]+@|(?![^\s/:@]+:\d+/)[^\s/:@]+:[^\s@'"]+@|[^\s/:@[]+:(?!\d+(?:/|$))[^\s/'"]+(?=/|$))"""
)
"""The user name and password of a URL, even with an unencoded slash; a host with a port does not match."""
SECRET_VALUE = re.compile(
    r"""([?&][^=&\s]*(?:key|secret|token|sig|pass|pwd|cred|auth)[^=&\s]*=)[^&\s'")]+""", re.IGNORECASE
)
"""A value of a URL's query whose name indicates a secret."""


def shorten(name: object, longest: int = LONGEST) -> str:
    """Return a name without control and direction characters, cut to `longest` characters."""
    text = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", str(name))
    return text if len(text) <= longest else text[: longest - 1] + "…"


def drawn(name: object, longest: int = 24) -> str:
    """Return a name for a matplotlib figure, where a dollar sign would start a formula."""
    return shorten(name, longest).replace("\\", "\N{FULLWIDTH REVERSE SOLIDUS}").replace("$", r"\$")


def percentage(value: float | None, digits: int = 2) -> str:
    """Return a fraction in percent without the sign; a dash for `None`."""
    return "–" if value is None else f"{100 * value:.{digits}f}"


def points(value: float, digits: int = 2) -> str:
    """Return a difference in percentage points with its sign; zero has the sign ±."""
    text = f"{100 * value:+.{digits}f}"
    return (text if float(text) != 0 else f"±{abs(float(text)):.{digits}f}").replace("-", "−")


def duration(seconds: float) -> str:
    """Return a duration in suitable units, such as `2 min 05 s`."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def size(count: float) -> str:
    """Return a number of bytes in a suitable unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if count >= 10 or unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def sentence(text: str) -> str:
    """Return a text with a capital first letter and the rest unchanged."""
    return text[:1].upper() + text[1:]


def abridged(names: Sequence[str], most: int = 5) -> str:
    """Join the first few names with commas, followed by an ellipsis if there are more."""
    return ", ".join([*(shorten(name) for name in names[:most]), *(["..."] if len(names) > most else [])])


def listed(names: list[str]) -> str:
    """Join names with commas and a final `and`."""
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


def masked(text: object) -> str:
    """Return a text with the user names, passwords and keys of URLs replaced by asterisks."""
    return SECRET_VALUE.sub(r"\1***", SECRET_USER.sub("***@", str(text)))


def readable(name: str) -> str:
    r"""Return a file name as text that can be encoded as UTF-8; other bytes become escapes such as `\xff`."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def without_folder(text: str) -> str:
    """Return a text without the folders of absolute paths and the secrets of URLs, so that it can be published."""
    shortened = FOLDERS.sub("", masked(text))
    return Path(shortened).name if Path(shortened).is_absolute() else shortened

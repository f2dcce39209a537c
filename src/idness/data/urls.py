"""Files and folders, local or by URL (https://, s3://, gs://), through universal_pathlib and fsspec."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import url2pathname

from idness.core.errors import DataError, IdnessError, needed
from idness.core.text import masked

if TYPE_CHECKING:
    from upath import UPath

    Place = Path | UPath

URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
"""The start of a URL; a single letter would be a drive."""
DATED = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az"})
"""URL schemes of object stores, which update the modification time on every change."""

SETTLED = 2.0
"""Seconds after which another change of a file has a different change time on every common file system."""


def is_url(place: object) -> bool:
    """Whether a location is a URL."""
    return URL.match(str(place)) is not None


def located(place: str, base: Path | None = None) -> Place:
    """Return the path of a URL or of a local file or folder, relative to `base`."""
    scheme, _, rest = place.partition("://")
    if scheme.lower() == "file" and rest.startswith("/"):
        return Path(url2pathname(rest))
    if not is_url(place):
        return (base or Path()) / Path(place).expanduser()
    paths = needed("upath", "a set by URL", "tables", DataError)
    with explained(masked(place), "cannot be opened"):
        found: UPath = paths.UPath(place.rstrip("/"))
        found.fs  # noqa: B018  raises if the file system is unknown or its package is missing
        return found


def exists(place: Place) -> bool:
    """Whether a file or folder exists; raise if the server does not respond."""
    with explained(masked(place), "cannot be opened"):
        return place.exists()


def name_of(place: Place) -> str:
    """Return the last part of a path, without the query and the secrets of a URL."""
    text = place.name if isinstance(place, Path) else masked(place).partition("?")[0].rstrip("/").rpartition("/")[2]
    return text.removeprefix("***@")


def suffix_of(place: Place) -> str:
    """Return the suffix of a path in lower case, with its dot."""
    return Path(name_of(place)).suffix.lower()


def listing(folder: UPath, endings: tuple[str, ...]) -> list[str]:
    """Return the files with these endings below a folder given by URL: relative paths, sorted, without hidden files."""
    with explained(masked(folder), "cannot be listed"):
        names = (path[len(folder.path.rstrip("/")) + 1 :] for path in folder.fs.find(folder.path))
        return sorted(name for name in names if name.lower().endswith(endings) and not re.search(r"(^|/)\.", name))


def state_of(file: Place) -> str | None:
    """Return attributes of a file that change whenever its content does; `None` if none are known to, such as just after a change.

    Programs cannot set the change time (ctime) of a local file, but two changes within its resolution are indistinguishable.
    """
    try:
        found = file.stat()
    except OSError:
        return "missing"
    if not isinstance(file, Path):
        return f"{found.st_size} {found.st_mtime}" if is_dated(file) and found.st_mtime else None
    if os.name == "nt" or found.st_ctime > time.time() - SETTLED:
        return None
    return f"{found.st_dev} {found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"


def is_dated(file: Place) -> bool:
    """Whether a file is in an object store, whose modification times are reliable."""
    return not isinstance(file, Path) and file.protocol in DATED


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, without secrets."""
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return masked((text.splitlines() or [type(error).__name__])[0])[:200]


@contextmanager
def explained(name: str, problem: str, remedy: str = "") -> Iterator[None]:
    """Convert any error of reading a local or remote file to a one-line `DataError` that names the file."""
    try:
        yield
    except IdnessError:
        raise
    except Exception as error:  # formats and file systems raise errors of many types
        raise DataError(f"{name}: {problem} ({first_line(error)}){remedy and f'; {remedy}'}") from error

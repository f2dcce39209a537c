"""Files and folders named by URL, such as s3:// and gs://, through pyarrow's file systems or else fsspec's."""

from __future__ import annotations

import fnmatch
import io
import re
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast
from urllib.request import url2pathname

from idness.core.errors import DataError
from idness.core.extras import needed
from idness.core.wording import masked

URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
"""How a URL begins; a single letter would be a drive."""
DATED = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az"})
"""Schemes of object stores, which set the modification time themselves on every change."""


def is_url(place: object) -> bool:
    """Whether a place is named by URL."""
    return URL.match(str(place)) is not None


def local_path(url: str) -> Path | None:
    """Return the path that a `file:` URL names; None for other URLs."""
    scheme, _, rest = url.partition("://")
    return Path(url2pathname(rest)) if scheme.lower() == "file" and rest.startswith("/") else None


def located(place: str, base: Path | None = None) -> Path | UrlPath:
    """Return a place by URL or on this machine, where relative paths begin at `base`."""
    if is_url(place):
        return local_path(place) or UrlPath(place)
    return (base or Path()) / Path(place).expanduser()


class State(NamedTuple):
    """Size and modification time of a file, named as `os.stat` names them."""

    st_size: int
    st_mtime_ns: int


class UrlPath:
    """A file or folder named by URL, with those methods of `pathlib.Path` that data sets need; `known` is its state if it was listed."""

    def __init__(self, url: str, known: State | None = None) -> None:
        self.url, self._known = url.rstrip("/"), known
        self._listed: dict[str, State] = {}

    def __str__(self) -> str:
        return masked(self.url)  # for messages; `url` opens it

    def __reduce__(self) -> tuple[type[UrlPath], tuple[str]]:
        return UrlPath, (self.url,)  # without the listing: workers only read

    def __truediv__(self, name: str) -> UrlPath:
        return UrlPath(f"{self.url}/{name}", self._listed.get(name))

    @property
    def name(self) -> str:
        """The last part of the name."""
        return str(self).partition("?")[0].rpartition("/")[2].removeprefix("***@")

    @property
    def suffix(self) -> str:
        """The suffix of the name, with its dot."""
        stem, dot, ending = self.name.rpartition(".")
        return f".{ending}" if dot and stem else ""

    @property
    def parent(self) -> UrlPath:
        """The folder that it is in."""
        return UrlPath(self.url.rpartition("/")[0])

    @property
    def dated(self) -> bool:
        """Whether the modification time changes with every change of the content."""
        return self.url.partition("://")[0].lower() in DATED and self.stat().st_mtime_ns > 0

    def absolute(self) -> UrlPath:
        """Return itself: a URL is always absolute."""
        return self

    def exists(self) -> bool:
        """Whether a file or folder of this name exists."""
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        """Whether it is a file."""
        return self._known is not None or bool(self._info().is_file)

    def is_dir(self) -> bool:
        """Whether it is a folder, or in an object store a prefix of names."""
        kind = _arrow_fs().FileType
        return self._known is None and self._info().type == kind.Directory

    def stat(self) -> State:
        """Return the file's size and modification time."""
        if self._known is None:
            found = self._info()
            if not found.is_file:
                raise FileNotFoundError(2, "No such file", str(self))
            self._known = _state(found)
        return self._known

    def native(self) -> Any:
        """Open the file as a pyarrow file."""
        system, path = _located(self.url)
        try:
            return system.open_input_file(path)
        except Exception as error:  # each file system has errors of its own
            raise OSError(5, _why(error), str(self)) from error

    def open(self, mode: str = "rb") -> BinaryIO:
        """Open the file for reading with seeks."""
        return cast(BinaryIO, io.BufferedReader(_Reading(self.native())))

    def read_bytes(self) -> bytes:
        """Return the bytes of the file."""
        with self.open() as file:
            return file.read()

    def read_text(self, encoding: str = "utf-8") -> str:
        """Return the text of the file."""
        return self.read_bytes().decode(encoding)

    def glob(self, pattern: str) -> list[UrlPath]:
        """Return the files of the folder that match; the pattern may start with the name of one folder."""
        folder, _, ending = pattern.rpartition("/")
        home = self / folder if folder else self
        return [home / name for name in home.listing() if "/" not in name and fnmatch.fnmatchcase(name, ending)]

    def listing(self) -> list[str]:
        """Return the names of all files below the folder, sorted, without hidden ones."""
        if not self._listed:
            system, path = _located(self.url)
            selector = _arrow_fs().FileSelector(path, recursive=True, allow_not_found=True)
            try:
                found = system.get_file_info(selector)
            except Exception as error:  # as above
                raise DataError(f"{self}: cannot be listed ({_why(error)})") from error
            below = ((info.path[len(path.rstrip("/")) + 1 :], info) for info in found if info.is_file)
            self._listed = {
                name: _state(info) for name, info in sorted(below, key=lambda pair: pair[0]) if not _hidden(name)
            }
        return list(self._listed)

    def _info(self) -> Any:
        system, path = _located(self.url)
        try:
            return system.get_file_info(path)
        except Exception as error:  # as above
            raise DataError(f"{self}: cannot be opened ({_why(error)})") from error


class _Reading(io.RawIOBase):
    """A pyarrow file as a Python file; all its errors become OSError."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def readinto(self, buffer: Any) -> int:
        try:
            found = self._file.read(len(buffer))
        except Exception as error:  # each file system has errors of its own
            raise OSError(5, _why(error)) from error
        buffer[: len(found)] = found
        return len(found)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def _hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _state(info: Any) -> State:
    return State(int(info.size or 0), int(info.mtime_ns or 0))


def _why(error: Exception) -> str:
    return masked((str(error).splitlines() or [type(error).__name__])[0])[:200]


def _arrow_fs() -> Any:
    return needed("pyarrow.fs", "a set by URL", "tables", DataError)


@cache
def _system(start: str) -> tuple[Any, bool]:
    """Return the file system of URLs that start so, and whether it is one of pyarrow's own."""
    arrow = _arrow_fs()
    try:
        return arrow.FileSystem.from_uri(start)[0], True
    except (ValueError, NotImplementedError):  # a scheme unknown to this pyarrow
        pass
    except OSError as error:
        raise DataError(f"{masked(start)}: its file system cannot be reached ({_why(error)})") from error
    fsspec = needed("fsspec.core", "a set by URL", "tables", DataError)
    try:
        return arrow.PyFileSystem(arrow.FSSpecHandler(fsspec.url_to_fs(start)[0])), False
    except (ImportError, ValueError) as error:
        raise DataError(
            f"{masked(start)}: no such file system ({_why(error)}); see fsspec's documentation for what to install"
        ) from error
    except Exception as error:  # each file system has errors of its own
        raise DataError(
            f"{masked(start)}: its file system cannot be opened ({_why(error)}); check the URL, or use a local copy"
        ) from error


def _located(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it."""
    scheme, _, rest = url.partition("://")
    system, own = _system(f"{scheme}://{rest.partition('/')[0]}/")
    if not own:
        return system, str(system.handler.fs._strip_protocol(url))
    return system, f"/{rest.partition('/')[2]}" if scheme == "file" else rest

"""The only module that writes, replaces and deletes files.

Writes are atomic: a reader sees the old content or the new one, never a part. In an output folder, only files that idness wrote are
overwritten or deleted; `OutputFolder` keeps track of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TextIO

from idness.core.errors import StoreError
from idness.core.text import abridged

Content = bytes | memoryview | str
LISTING = ".idness.json"
"""The file of an output folder that lists the files idness wrote there."""
TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.part$")
"""The suffix of temporary files written by idness."""
STALE = 24 * 3600
"""Seconds after which the process that wrote a temporary file is assumed dead."""


class OutputFolder(os.PathLike[str]):
    """An output folder and a record of which of its files idness wrote.

    A folder may be written to if it is new, empty, or idness wrote to it before. A file in it is overwritten only if idness wrote it, or
    with `force`; a file is deleted only if idness wrote it. Names starting with a dot are ignored.

    `recognise` returns the names of idness's files in a folder without a listing, such as one written by 0.1.0; unless the folder is
    `listed`, it alone decides.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        recognise: Callable[[Path], Collection[str]] = lambda _: (),
        *,
        listed: bool = True,
        force: bool = False,
    ) -> None:
        self.path, self.recognise, self.listed, self.force = Path(path), recognise, listed, force

    @classmethod
    def of(cls, path: str | os.PathLike[str], *options: Any, **more: Any) -> OutputFolder:
        """Return `path` itself if it is an output folder, otherwise an output folder at `path` with these options."""
        return path if isinstance(path, cls) else cls(path, *options, **more)

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def listing(self) -> dict[str, Any] | None:
        """Return the listing; `None` if the folder has none."""
        try:
            found = json.loads((self.path / LISTING).read_bytes())
            # A listing must not point outside its folder.
            return {**found, "files": [name for name in found["files"] if found["idness"] and Path(name).name == name]}
        except (OSError, ValueError, TypeError, KeyError):
            return None

    @property
    def files(self) -> set[str]:
        """Names of the files that idness wrote."""
        found = self.listing() if self.listed else None
        return set(found["files"] if found is not None else self.recognise(self.path))

    def check(self, *, resume: bool | None = None) -> None:
        """Raise unless the folder can be written to; create nothing. With `resume=False`, raise also if idness wrote to it before."""
        check_writable(self.path)
        ours = self.listing() is not None or bool(self.recognise(self.path))
        entries = sorted(self.path.iterdir()) if self.path.is_dir() else []
        found = [entry.name for entry in entries if entry.name[0] != "." or (entry.name == LISTING and not ours)]
        if not found or self.force:
            return
        if resume is False:
            raise StoreError(f"{self.path} exists; pass resume=True to continue it, or choose another folder")
        if not ours:
            more = ", or pass force=True to overwrite files of the same name" if resume is None else ""
            those = f"files that idness did not write ({abridged(found, 3)})"
            raise StoreError(f"{self.path}: contains {those}; choose a new or empty folder{more}")

    def write(self, contents: Mapping[str, Content]) -> list[Path]:
        """Write files and return their paths; all are written completely before they are moved into place, in the given order."""
        self.check()
        files, paths = self.files, {name: self.path / name for name in contents}
        for name, path in paths.items():
            if name not in files and os.path.lexists(path) and not self.force:
                raise StoreError(f"{path}: exists and was not written by idness; move it or pass force=True")
        if self.listed and not set(contents) <= files:
            self.record(files | set(contents))  # first, so that every file is listed even after a kill
        with ExitStack() as parts:  # entered first, moved into place last
            for name, path in reversed(paths.items()):
                parts.enter_context(atomic_path(path)).write_bytes(_bytes(contents[name]))
        return list(paths.values())

    def record(self, files: Iterable[str], **about: Any) -> None:
        """List these files as written by idness, or about to be; `about` is stored in the listing too."""
        content = {"idness": 1, **(self.listing() or {}), **about, "files": sorted(files)}
        atomic_write(self.path / LISTING, json.dumps(content, indent=1) + "\n")

    def remove(self, names: Iterable[str]) -> None:
        """Delete these files, except any that idness did not write."""
        files = self.files
        gone = files.intersection(names)
        discard(*(self.path / name for name in gone))
        if self.listed and gone:
            self.record(files - gone)


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path, which is moved to `path` at the end of the block, or removed after an error."""
    target = Path(path)
    part = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for left in target.parent.glob(".*.part"):  # left by an idness process that was killed
            with suppress(OSError):  # another process was faster
                if TEMPORARY.search(left.name) and time.time() - left.stat().st_mtime > STALE:
                    left.unlink()
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(target)
    except OSError as error:
        raise StoreError(_cannot_write(target, error)) from error
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def marked(folder: Path) -> Iterator[str]:
    """Yield the name of an empty file that exists in a folder while the block runs; a process that sees it shares the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(prefix=".idness-", dir=folder) as mark:
        yield Path(mark.name).name


def atomic_write(path: str | os.PathLike[str], content: Content, check: Callable[[Path], None] | None = None) -> Path:
    """Write bytes, or text as UTF-8, to a file atomically and return its path; `check` is called with the temporary file first."""
    with atomic_path(path) as part:
        part.write_bytes(_bytes(content))
        if check is not None:
            check(part)
    return Path(path)


@contextmanager
def atomic_stream(path: str | os.PathLike[str]) -> Iterator[TextIO]:
    """Open a text file for writing that replaces `path` at the end of the block, unless there was an error."""
    with atomic_path(path) as part, part.open("w", encoding="utf-8", newline="") as stream:
        yield stream


def _bytes(content: Content) -> bytes | memoryview:
    return content.encode() if isinstance(content, str) else content


@contextmanager
def locked(folder: Path | None, *, wait: bool = False) -> Iterator[None]:
    """Create a folder if needed and lock it against other processes while the block runs; leaves no file. `None` locks nothing.

    If another process has the lock, raise an error, or wait for it with `wait`. Windows has no such locks.
    """
    if folder is None or os.name == "nt":
        yield
        return
    import fcntl

    check_writable(folder)
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        os.close(handle)
        raise StoreError(f"{folder}: another process is writing to it; wait, or choose another folder") from error
    try:
        yield
    finally:
        os.close(handle)


def check_writable(folder: str | os.PathLike[str]) -> None:
    """Raise if a folder cannot be written to; called before the work whose results go there. Leaves no files behind."""
    target = Path(folder)
    place = next(place for place in (target, *target.absolute().parents) if os.path.lexists(place))
    if not place.is_dir():
        raise StoreError(f"{target}: {place.name} is not a folder; choose another folder")
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"\0")
    except OSError as error:
        raise StoreError(_cannot_write(target, error)) from error


def opened_for_download(path: Path, *, resumed: bool) -> IO[bytes]:
    """Open a partial download, to continue it or to start it again."""
    return path.open("ab" if resumed else "wb")


def discard(*paths: Path) -> None:
    """Delete files that the caller wrote."""
    for path in paths:
        path.unlink(missing_ok=True)


def unpack_archive(archive: Path, target: Path) -> None:
    """Unpack a .tar, .tar.gz, .tgz or .zip into a folder, or copy any other file there.

    Existing files are not overwritten: one of the same name with other content is an error, raised before anything is moved.
    """
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=target) as place:
        folder = Path(place)
        if archive.suffix == ".zip":
            shutil.unpack_archive(archive, folder)  # skips `..` and absolute names
        elif archive.suffix in (".tar", ".gz", ".tgz"):
            shutil.unpack_archive(archive, folder, filter="data")
        else:
            shutil.copyfile(archive, folder / archive.name)
        found = [entry.relative_to(folder) for entry in sorted(folder.rglob("*")) if not entry.is_dir()]
        moves = [(folder / name, target / name) for name in found]
        for entry, goal in moves:
            if os.path.lexists(goal) and not (goal.is_file() and sha256(goal) == sha256(entry)):
                raise StoreError(f"{goal}: exists with other content; move it and run the same command again")
        for entry, goal in moves:
            goal.parent.mkdir(parents=True, exist_ok=True)
            entry.replace(goal)


def sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of(content: Content | Iterable[Content]) -> str:
    """Return the SHA-256 of bytes, of text as UTF-8, or of several of them in sequence."""
    digest = hashlib.sha256()
    for part in (content,) if isinstance(content, Content) else content:
        digest.update(_bytes(part))
    return digest.hexdigest()


def key_of(*parts: str) -> str:
    """Return one key for several strings that together identify something."""
    return sha256_of(json.dumps(parts))


def _cannot_write(target: Path, error: OSError) -> str:
    return f"cannot write {target}: {error.strerror or error}; free space or choose another folder"

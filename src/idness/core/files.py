"""The only module that writes, replaces and deletes files.

Files are written so that a reader sees the old content or the new one, never a part. In an output folder, only files that idness wrote
are overwritten or deleted; `OutputFolder` knows which these are.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TextIO

from idness.core.errors import StoreError

Content = bytes | memoryview | str
LISTING = ".idness.json"
"""The file of an output folder that lists the files idness wrote there."""
OWNER = re.compile(r"\.([0-9a-f]{8})-([0-9]{1,9})\.[^.]*\.part$")
"""How the name of a temporary file identifies its writer: machine and process."""
STALE = 24 * 3600
"""Seconds after which the writer of a temporary file is assumed dead, also on another machine."""


class OutputFolder(os.PathLike[str]):
    """An output folder, and which of its files idness wrote.

    A folder may be written to if it is new, empty, or idness wrote to it before. A file in it is overwritten only if idness wrote it, or
    with `force`; a file is deleted only if idness wrote it. Names starting with a dot are ignored.

    Args:
        path: the folder.
        recognise: returns the names of our files in a folder without a listing, such as one written by 0.1.0; empty if it is not ours.
        listed: whether to keep a listing in the folder; otherwise `recognise` alone decides.
        force: also overwrite files that idness did not write.
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
        """Return `path` itself if it is an output folder, or else make it one with these options."""
        return path if isinstance(path, cls) else cls(path, *options, **more)

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def listing(self) -> dict[str, Any] | None:
        """Read the listing; `None` if the folder has none."""
        try:
            found = json.loads((self.path / LISTING).read_bytes())
            # A listing must not lead out of its folder.
            return {**found, "files": [name for name in found["files"] if found["idness"] and Path(name).name == name]}
        except (OSError, ValueError, TypeError, KeyError):
            return None

    @property
    def files(self) -> set[str]:
        """Names of the files that idness wrote; a name ending in `-*` covers all names with that beginning."""
        found = self.listing() if self.listed else None
        return set(found["files"] if found is not None else self.recognise(self.path))

    def owns(self, name: str, files: Collection[str] | None = None) -> bool:
        """Whether idness wrote the file of this name."""
        known = self.files if files is None else files
        return name in known or f"{name.rpartition('-')[0]}-*" in known

    def check(self, *, resume: bool | None = None) -> None:
        """Raise unless the folder can be written to; creates nothing.

        Args:
            resume: whether a folder that idness wrote to may be continued; `None` if it may always.
        """
        check_writable(self.path)
        ours = self.listing() is not None or bool(self.recognise(self.path))
        entries = sorted(self.path.iterdir()) if self.path.is_dir() else []
        found = [entry.name for entry in entries if entry.name[0] != "." or (entry.name == LISTING and not ours)]
        if not found or self.force:
            return
        if resume is False:
            raise StoreError(f"{self.path} exists; resume=True continues it, or choose another folder")
        if not ours:
            names = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
            more = ", or pass force=True to overwrite files of the same name" if resume is None else ""
            raise StoreError(
                f"{self.path}: contains files that idness did not write ({names}); choose a new or empty folder{more}"
            )

    def write(self, contents: Mapping[str, Content]) -> list[Path]:
        """Write files and return their paths.

        All are written before the first takes its place, in the given order, so a full disk leaves the folder unchanged.
        """
        self.check()
        files, written = self.files, [self.path / name for name in contents]
        foreign = {path.name for path in written if os.path.lexists(path) and not self.owns(path.name, files)}
        same = {name for name in foreign if (self.path / name).is_file() and _same(self.path / name, contents[name])}
        if foreign > same and not self.force:
            raise StoreError(
                f"{self.path / min(foreign - same)}: exists and was not written by idness;"
                " move it, choose another folder or pass force=True"
            )
        contents = {name: content for name, content in contents.items() if name not in same}
        if self.listed and (new := {name for name in contents if not self.owns(name, files)}):
            self.record(files | new)  # first: after a kill, every file of ours is listed
        with ExitStack() as parts:  # what is entered first takes its place last
            for name, content in reversed(list(contents.items())):
                parts.enter_context(atomic_path(self.path / name)).write_bytes(_bytes(content))
        return written

    def record(self, files: Iterable[str], **about: Any) -> None:
        """List these files as written by idness, or about to be; `about` is kept with them."""
        content = {"idness": 1, **(self.listing() or {}), **about, "files": sorted(files)}
        atomic_write(self.path / LISTING, json.dumps(content, indent=1) + "\n")

    def remove(self, names: Iterable[str]) -> None:
        """Delete those of these files that idness wrote."""
        files = self.files
        gone = {name for name in names if self.owns(name, files)}
        for name in gone:
            (self.path / name).unlink(missing_ok=True)
        if self.listed and gone & files:
            self.record(files - gone)


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path beside `path` and move it there when the block ends well.

    After a failure the temporary file is removed and `path` is as it was.
    """
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        sweep(target.parent)
        name = _own_part(target)
    except OSError as error:
        raise StoreError(_cannot_write(target, error)) from error
    part = Path(name)
    try:
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
    """Keep an empty file in a folder while the block runs, and give its name: whoever finds it sees the same folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sweep(folder)
        mark = Path(_own_part(folder / "mark"))
    except OSError as error:
        raise StoreError(_cannot_write(folder, error)) from error
    try:
        yield mark.name
    finally:
        mark.unlink(missing_ok=True)
        with suppress(OSError):  # it holds something, as it should
            folder.rmdir()


def _own_part(target: Path) -> str:
    """Make a temporary file beside a path, whose name says whose it is."""
    name = target.parent / f".{target.name}.{_host()}-{os.getpid()}.{secrets.token_hex(4)}.part"
    os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))  # the umask applies, as to any new file
    return str(name)


def sweep(folder: Path) -> None:
    """Remove temporary files of ours whose writer was killed."""
    for left in folder.glob(".*.part"):
        owner = OWNER.search(left.name)
        with suppress(OSError):  # another process was faster
            if owner is None:
                continue
            if (owner[1] == _host() and not _runs(int(owner[2]))) or time.time() - left.stat().st_mtime > STALE:
                left.unlink()


def _host() -> str:
    return sha256_of(platform.node())[:8]


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return True


def atomic_write(path: str | os.PathLike[str], content: Content, check: Callable[[Path], None] | None = None) -> Path:
    """Write bytes, or text as UTF-8, to a file in one step and return its path; `check` sees the new file before it takes its place."""
    with atomic_path(path) as part:
        part.write_bytes(_bytes(content))
        if check is not None:
            check(part)
    return Path(path)


@contextmanager
def atomic_stream(path: str | os.PathLike[str]) -> Iterator[TextIO]:
    """Open a text file for writing, which takes its place when the block ends without an error."""
    with atomic_path(path) as part, part.open("w", encoding="utf-8", newline="") as stream:
        yield stream


def _same(path: Path, content: Content) -> bool:
    return path.read_bytes() == _bytes(content)


def _bytes(content: Content) -> bytes | memoryview:
    return content.encode() if isinstance(content, str) else content


_HELD: set[int] = set()
"""Descriptors of the folders that this process has locked."""


def _let_go() -> None:
    """Close them in a forked process, which would otherwise keep the lock after its parent was killed."""
    while _HELD:
        os.close(_HELD.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


@contextmanager
def locked(folder: Path | None, *, wait: bool = False) -> Iterator[None]:
    """Lock a folder against other processes while the block runs, if the system has file locks; leaves no file.

    Args:
        folder: the folder, which is created; `None` locks nothing.
        wait: whether to wait for another process instead of raising.
    """
    try:
        import fcntl
    except ImportError:
        folder = None
    if folder is None:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise StoreError(_cannot_write(folder, error)) from error
    _HELD.add(handle)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            raise StoreError(
                f"{folder}: another process is writing into it; wait for it, or choose another folder"
            ) from error
        yield
    finally:
        if handle in _HELD:  # not in a process that was forked in the block
            _HELD.remove(handle)
            os.close(handle)


def check_writable(folder: str | os.PathLike[str]) -> None:
    """Refuse a folder into which nothing can be written, before the work whose results should go there; nothing is left in it."""
    target = Path(folder)
    place = next(place for place in (target, *target.absolute().parents) if place.exists())
    try:
        if not place.is_dir():
            raise NotADirectoryError(0, f"{place} is no folder")
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"\0")
    except OSError as error:
        raise StoreError(_cannot_write(target, error)) from error


def opened_for_download(path: Path, *, resumed: bool) -> IO[bytes]:
    """Open a partial download to append to it, or to start it again."""
    return path.open("ab" if resumed else "wb")


def discard(*paths: Path) -> None:
    """Delete files that the calling function has written itself."""
    for path in paths:
        path.unlink(missing_ok=True)


def unpack(archive: Path, name: str, target: Path) -> None:
    """Unpack a .tar, .tar.gz, .tgz or .zip into a folder, or copy any other file there under its name.

    Nothing that exists is overwritten: a file of the same name with other content is refused before anything is moved.
    """
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=target) as place:
        folder = Path(place)
        if name.endswith((".tar", ".tar.gz", ".tgz")):
            with tarfile.open(archive) as packed:
                packed.extractall(folder, filter="data")
        elif name.endswith(".zip"):
            with zipfile.ZipFile(archive) as zipped:
                zipped.extractall(folder)  # removes `..` and absolute names
        else:
            shutil.copyfile(archive, folder / name)
        moves = [
            (entry, target / entry.relative_to(folder)) for entry in sorted(folder.rglob("*")) if not entry.is_dir()
        ]
        for entry, goal in moves:
            if os.path.lexists(goal) and not (goal.is_file() and sha256(goal) == sha256(entry)):
                raise StoreError(f"{goal}: exists with other content; move it and run the same command again")
        for entry, goal in moves:
            goal.parent.mkdir(parents=True, exist_ok=True)
            entry.replace(goal)


def sha256(path: str | os.PathLike[str]) -> str:
    """Hash a file's bytes."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of(content: Content | Iterable[Content]) -> str:
    """Hash bytes, or text as UTF-8, or several of them one after the other."""
    digest = hashlib.sha256()
    for part in (content,) if isinstance(content, Content) else content:
        digest.update(part.encode() if isinstance(part, str) else part)
    return digest.hexdigest()


def key_of(*parts: str) -> str:
    """Hash the texts that together identify something."""
    return sha256_of(json.dumps(parts))


def _cannot_write(target: Path, error: OSError) -> str:
    return f"cannot write {target}: {error.strerror or error}; free space or choose another folder"

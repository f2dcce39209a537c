"""Writes files so that a reader sees the old content or the new one, never a part."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import secrets
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from idness.core.errors import StoreError

Content = bytes | memoryview | str
OWNER = re.compile(r"\.([0-9a-f]{8})-([0-9]{1,9})\.[^.]*\.part$")
"""How the name of a temporary file says who writes it: machine and process."""


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
    """Remove the temporary files that processes of this machine have left in a folder which were killed."""
    for left in folder.glob(".*.part"):
        owner = OWNER.search(left.name)
        if owner is not None and owner[1] == _host() and not _runs(int(owner[2])):
            left.unlink(missing_ok=True)


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


def atomic_write(path: str | os.PathLike[str], content: bytes | str) -> Path:
    """Write bytes, or text as UTF-8, to a file in one step and return its path."""
    with atomic_path(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)
    return Path(path)


_HELD: set[int] = set()
"""The folders that this process has to itself, as they are open."""


def _let_go() -> None:
    """Close them in a process that was forked: it would keep them from whoever comes after its parent was killed."""
    while _HELD:
        os.close(_HELD.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


@contextmanager
def alone_in(folder: Path | None) -> Iterator[None]:
    """Keep other processes that ask for the same out of a folder while the block runs, where the system has locks."""
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
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
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


def check_new(folder: str | os.PathLike[str], *, resume: bool) -> None:
    """Refuse a folder for results that holds something already, unless its work is to be gone on with; or one that is no folder."""
    target = Path(folder)
    check_writable(target)
    if not resume and target.is_dir() and any(target.iterdir()):
        raise StoreError(f"{target} exists; resume=True goes on with what it holds, or choose another folder")


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

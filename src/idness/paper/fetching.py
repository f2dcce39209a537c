"""Fetches a file with resume, checks it, and unpacks it so that nothing half-loaded or wrong is ever used."""

from __future__ import annotations

import hashlib
import http.client
import json
import tarfile
import time
import tomllib
import urllib.error
import urllib.request
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from idness.core.errors import DataError, StoreError
from idness.core.files import atomic_write, discard, locked, opened_for_download, unpack
from idness.core.progress import Listener

BLOCK = 1 << 20
TRIES, PAUSE, PATIENCE = 5, 1.0, 60.0
"""How often a broken connection is taken up again, after how many seconds at first, and how long a silent one is waited for."""
MOST = 1 << 44
"""Bytes that nothing to be fetched has: a server that sends more is broken."""


@dataclass(frozen=True)
class Archive:
    """Names a file that may be fetched: where from, where to, its hash or the beginning of it, and which sets it brings."""

    name: str
    url: str
    licence: str = ""
    to: str = ""
    sha256: str = ""
    md5: str = ""
    sets: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def file(self) -> str:
        """What the file is called."""
        return PurePosixPath(urlsplit(self.url).path).name


def archives() -> dict[str, Archive]:
    """Read which files may be fetched."""
    table = tomllib.loads((files("idness.paper") / "archives.toml").read_text(encoding="utf-8"))
    return {name: Archive(name, **about) for name, about in table.items()}


def fetch(archive: Archive, root: Path, listener: Listener | None = None) -> Path:
    """Fetch a file below a folder, check it and unpack it; what an earlier try has loaded is not loaded again.

    Nothing appears in its place before all of it has been read and checked.
    """
    hear = listener or Listener()
    waiting = root / ".fetched"
    with locked(waiting):
        part = waiting / f"{archive.file}.part"
        hear.phase(f"fetching {archive.name}", None)
        _load(archive, part, hear)
        _check(archive, part)
        target = root / archive.to
        _unpack(archive, part, target)
        discard(part, _beside(part))
    with suppress(OSError):  # other files are in it
        waiting.rmdir()
    return target


def _load(archive: Archive, part: Path, hear: Listener) -> None:
    """Load what is missing, again and again while the connection breaks."""
    if urlsplit(archive.url).scheme not in ("http", "https"):
        raise DataError(f"{archive.name}: only http and https addresses are fetched, got {archive.url!r}")
    reason = ""
    for attempt in range(TRIES):
        if attempt:
            time.sleep(PAUSE * 2 ** (attempt - 1))
        try:
            if _go_on(archive, part, hear):
                return
            reason = "the connection ended too early"
        except urllib.error.HTTPError as error:
            if error.code < 500:
                raise DataError(
                    f"{archive.name}: {archive.url} answers {error.code} {error.reason}; fetch it by hand"
                ) from error
            reason = f"{error.code} {error.reason}"
        except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
    raise DataError(
        f"{archive.name}: could not be fetched from {archive.url} ({reason}); what is loaded is kept, run the same command again"
    )


def _go_on(archive: Archive, part: Path, hear: Listener) -> bool:
    """Load from where the file ends; whether it then is whole."""
    have = part.stat().st_size if part.exists() else 0
    known = _known(part)
    headers = {"User-Agent": "idness"}
    if have and known.get("version"):
        # The server sends the rest only of the same version of the file.
        headers |= {"Range": f"bytes={have}-", "If-Range": known["version"]}
    if have and known.get("whole") == have:
        return True
    with urllib.request.urlopen(urllib.request.Request(archive.url, headers=headers), timeout=PATIENCE) as answer:
        if "html" in answer.headers.get("Content-Type", ""):
            raise DataError(f"{archive.name}: {archive.url} sends a web page, not a file; fetch it by hand")
        resumed = answer.status == http.HTTPStatus.PARTIAL_CONTENT
        start = have if resumed else 0
        length = answer.headers.get("Content-Length")
        whole = start + int(length) if length is not None else None
        version = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
        atomic_write(_beside(part), json.dumps({"version": version, "whole": whole}))
        hear.phase(f"fetching {archive.name}", whole)
        hear.advance(start)
        size = start
        try:
            with opened_for_download(part, resumed=resumed) as file:
                while block := answer.read(BLOCK):
                    size += len(block)
                    if size > (MOST if whole is None else whole):
                        raise DataError(f"{archive.name}: {archive.url} sends more than it said; try again later")
                    file.write(block)
                    hear.advance(len(block))
        except OSError as error:
            if error.errno is not None and not isinstance(error, ConnectionError | TimeoutError):
                raise StoreError(
                    f"cannot write {part}: {error.strerror or error}; free space or choose another folder"
                ) from error
            raise
    return whole is None or size == whole


def _check(archive: Archive, part: Path) -> None:
    """Compare the file with what its publisher says of it; a wrong one is removed, so that the next try begins anew."""
    for kind, wanted in (("sha256", archive.sha256), ("md5", archive.md5)):
        if not wanted:
            continue
        with part.open("rb") as file:
            found = hashlib.file_digest(file, partial(hashlib.new, kind, usedforsecurity=False)).hexdigest()
        if not found.startswith(wanted):
            discard(part, _beside(part))
            raise DataError(
                f"{archive.name}: what {archive.url} sent is not the file it should be ({kind} {found[:16]}..., not {wanted[:16]}...);"
                " it was removed; try again, or fetch it by hand"
            )


def _unpack(archive: Archive, part: Path, target: Path) -> None:
    """Unpack the content to its place; a file that cannot be unpacked is removed."""
    try:
        unpack(part, archive.file, target)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, ValueError) as error:
        discard(part, _beside(part))
        raise DataError(
            f"{archive.name}: the file from {archive.url} cannot be unpacked ({error}); it was removed, try again"
        ) from error


def _beside(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _known(part: Path) -> dict[str, Any]:
    """Read what an earlier try has learned of the file."""
    try:
        found = json.loads(_beside(part).read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}

"""Sets of images, each read in order and in bounded memory."""

from __future__ import annotations

import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idness.core.errors import DataError, StoreError
from idness.core.files import atomic_write, key_of, sha256_of
from idness.core.wording import abridged, readable
from idness.data.decoding import SUFFIXES, contents, decode_picture
from idness.data.urls import UrlPath

Picture = Image.Image | NDArray[np.uint8]
AT_ONCE = 1024
"""Images that are hashed together."""
SETTLED = 2.0
"""Seconds after which another change of a file gets another change time on every common file system."""


class ImageSet(ABC):
    """Lists images, perhaps with labels, that can be read from any place on.

    Args:
        source: what it was opened from, without any absolute path.
        labels: the class of each image, or none.
        classes: the names of the classes, or none where they are unknown.
    """

    parallel = False
    """Whether single images are read independently, so that threads help."""
    channels = 3
    """How many channels each image has."""
    hold = 1
    """How many blocks are kept in memory, of a set that is read in blocks."""
    reads = ""
    """The array or column that images are read from, if files hold several."""

    def __init__(self, source: str, labels: NDArray[np.int64] | None = None, classes: Sequence[str] = ()) -> None:
        self.source = source
        self.labels = labels
        self.classes = tuple(classes)

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def picture(self, index: int) -> Picture:
        """Read one image, or raise a DataError that says what is wrong with it."""

    def files(self, start: int, stop: int) -> Iterable[Path | UrlPath]:
        """Return the files that the images of a range are read from; empty if they are not read from files."""
        return ()

    def digest(self, index: int) -> str:
        """Return a hash of one image's content, or of the reason why it cannot be read."""
        try:
            data = self.encoded(index)
            return sha256_of(np.asarray(self.picture(index)).tobytes() if data is None else data)
        except DataError as error:
            return sha256_of(str(error))

    def stamp(self, start: int, stop: int) -> str:
        """Return a hash of the content of a range of images.

        Files in an object store are not read: the store itself sets their modification time on every change.
        """
        files = list(self.files(start, stop))
        if files and all(isinstance(file, UrlPath) and file.dated for file in files):
            return self.state(start, stop) or ""
        chosen = range(start, min(stop, len(self)))
        if not self.parallel or len(chosen) < 2:
            return sha256_of(map(self.digest, chosen))
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            parts = (chosen[low : low + AT_ONCE] for low in range(0, len(chosen), AT_ONCE))
            return sha256_of(found for part in parts for found in pool.map(self.digest, part))

    def state(self, start: int, stop: int) -> str | None:
        """Return a hash of the state (size, times, inode) of the files of a range, without reading them; None if that proves nothing."""
        states = [_state(file) for file in self.files(start, stop)]
        if not states or None in states:
            return None
        items = (self.item(index) for index in range(start, min(stop, len(self))))
        return key_of(self.reads, *items, *(state for state in states if state))

    def encoded(self, index: int) -> bytes | None:
        """Give one image's file as it is, where there is one; none where images are arrays."""
        return None

    def blocks(self) -> list[int] | None:
        """Say where the parts begin that are read as a whole, and where the last ends; none where any order is as good."""
        return None

    def item(self, index: int) -> str:
        """Name one image."""
        return str(index)

    def portion(self, start: int, stop: int) -> ImageSet:
        """Give a set of these images alone, without labels, that is light to send to another process, wherever that runs."""
        return Part(self, range(start, stop), f"{start}:{stop}")

    def present(self) -> bool:
        """Say whether any of its files is there, where it is made of files."""
        return True

    def fingerprint(self, memory: Path | None = None) -> str:
        """Return a hash of the content and labels of all images; `memory` as for `stamp_of`."""
        spans = ((low, min(low + AT_ONCE, len(self))) for low in range(0, len(self), AT_ONCE))
        labels = b"" if self.labels is None else self.labels.tobytes()
        return sha256_of((*(stamp_of(self, start, stop, memory) for start, stop in spans), labels))


class FileSet(ImageSet):
    """Image files below a folder, which may be a URL."""

    parallel = True

    def __init__(
        self,
        root: Path | UrlPath,
        items: Sequence[str],
        source: str,
        labels: NDArray[np.int64] | None = None,
        classes: Sequence[str] = (),
    ) -> None:
        super().__init__(source, labels, classes)
        self.root, self.items = root, list(items)

    def __len__(self) -> int:
        return len(self.items)

    def item(self, index: int) -> str:
        return readable(self.items[index])

    def encoded(self, index: int) -> bytes:
        return contents(self._file(self.items[index]))

    def picture(self, index: int) -> Picture:
        file = self._file(self.items[index])
        return decode_picture(contents(file), name=readable(file.name))

    def files(self, start: int, stop: int) -> Iterable[Path | UrlPath]:
        return map(self._file, self.items[start:stop])

    def digest(self, index: int) -> str:
        return sha256_of((os.fsencode(self.items[index]) + b"\0", super().digest(index)))

    def portion(self, start: int, stop: int) -> ImageSet:
        return FileSet(self.root.absolute(), self.items[start:stop], self.source)

    def present(self) -> bool:
        return any(self._file(name).exists() for name in self.items)

    def _file(self, name: str) -> Path | UrlPath:
        return self.root / name


class Part(ImageSet):
    """Shows some of the images of another set, such as the first thousand, or one in ten."""

    def __init__(self, whole: ImageSet, places: Sequence[int], note: str) -> None:
        labels = None if whole.labels is None else whole.labels[np.asarray(places, np.int64)]
        super().__init__(f"{whole.source}[{note}]", labels, whole.classes)
        self.whole, self.places = whole, places
        self.parallel, self.channels, self.reads = whole.parallel, whole.channels, whole.reads

    def __len__(self) -> int:
        return len(self.places)

    def item(self, index: int) -> str:
        return self.whole.item(self.places[index])

    def encoded(self, index: int) -> bytes | None:
        return self.whole.encoded(self.places[index])

    def picture(self, index: int) -> Picture:
        return self.whole.picture(self.places[index])

    def stamp(self, start: int, stop: int) -> str:
        part = self.places[start:stop]
        if isinstance(part, range) and part.step == 1:
            return self.whole.stamp(part.start, part.stop)
        return super().stamp(start, stop)

    def files(self, start: int, stop: int) -> Iterable[Path | UrlPath]:
        return dict.fromkeys(file for place in self.places[start:stop] for file in self.whole.files(place, place + 1))

    def digest(self, index: int) -> str:
        return self.whole.digest(self.places[index])

    def portion(self, start: int, stop: int) -> ImageSet:
        part = self.places[start:stop]
        if isinstance(part, range) and part.step == 1:
            return self.whole.portion(part.start, part.stop)
        return Part(self.whole, part, f"{start}:{stop}")

    def present(self) -> bool:
        return self.whole.present()


def folder_set(root: Path | UrlPath, classes: Sequence[str] = ()) -> FileSet:
    """Open a folder of images: one folder per class, or all in one without labels; hidden and dangling entries are ignored.

    `classes` are the class folders in the order of the network's outputs; without them they are sorted, numbers as numbers.
    """
    if not root.is_dir():
        raise DataError(
            f"{root.name}: must be a folder of images, got {'a file' if root.exists() else 'nothing there'}"
        )
    top, folders = _listed_folder(root) if isinstance(root, UrlPath) else _folder(root)
    if top or not folders:
        return FileSet(root, [*top, *(file for found in folders.values() for file in found)], root.name)
    order = list(classes) or list(folders)
    unknown = sorted(set(folders) - set(order))
    if unknown:
        raise DataError(
            f"{root.name}: {len(folders) - len(unknown)} of its {len(folders)} folders are classes of the network, {len(unknown)} are not"
            f" ({abridged(unknown)}); remove them or list them in classes"
        )
    pairs = [(file, label) for label, name in enumerate(order) for file in folders.get(name, [])]
    labels = np.array([label for _, label in pairs], dtype=np.int64)
    return FileSet(root, [file for file, _ in pairs], root.name, labels, order)


def _folder(root: Path) -> tuple[list[str], dict[str, list[str]]]:
    """Name the images in a folder, and those of each of its folders."""
    entries = _listed(str(root))
    names = in_order(name for name, is_folder in entries if is_folder)
    below = {name: [f"{name}{os.sep}{file}" for file in _names_below(f"{root}{os.sep}{name}")] for name in names}
    top = [name for name, is_folder in entries if not is_folder]
    return top, {name: files for name, files in below.items() if files}


def _listed_folder(root: UrlPath) -> tuple[list[str], dict[str, list[str]]]:
    """Do the same from one listing of all that is below."""
    found = [name for name in root.listing() if (root / name).suffix.lower() in SUFFIXES]
    folders: dict[str, list[str]] = {}
    for name in found:
        if "/" in name:
            folders.setdefault(name.partition("/")[0], []).append(name)
    return [name for name in found if "/" not in name], {name: folders[name] for name in in_order(folders)}


def pick(source: str, kind: str, what: str, wanted: str | None, usual: Sequence[str], names: Sequence[str]) -> str:
    """Choose the array or column of images or labels: the one that is wanted, else the first usual one; labels may be missing."""
    if wanted is not None and wanted not in names:
        raise DataError(f"{source}: has no {kind} {wanted!r}; it has {', '.join(names)}")
    found = wanted or next((name for name in usual if name in names), "")
    if not found and what == "images":
        raise DataError(f'{source}: which {kind} holds the {what}? It has {", ".join(names)}; say {what} = "..."')
    return found


def in_order(names: Iterable[str]) -> list[str]:
    """Sort the names of classes: as numbers where all are (0, 1, 2, 10), else as text."""
    listed = list(names)
    numbers = all(name.isdecimal() for name in listed)
    return sorted(listed, key=lambda name: (int(name) if numbers else 0, name))


def stamp_of(images: ImageSet, start: int, stop: int, memory: Path | None) -> str:
    """Return the stamp of a range of images; files that have not changed since it was computed are not read again.

    Args:
        images: the set.
        start: first image.
        stop: one past the last image.
        memory: a folder that remembers the stamp of each state of the files; None to read the images.
    """
    state = None if memory is None else images.state(start, stop)
    if memory is None or state is None:
        return images.stamp(start, stop)
    place = memory / state[:2] / state
    with suppress(OSError, UnicodeDecodeError):
        known = place.read_text()
        if re.fullmatch("[0-9a-f]{64}", known):
            return known
    found = images.stamp(start, stop)
    with suppress(StoreError):  # reading the images again next time is the only harm
        atomic_write(place, found)
    return found


def _state(file: Path | UrlPath) -> str | None:
    """Describe a file by what changes whenever its content does; None if nothing is known to.

    No program can set the change time (ctime) of a local file. Within its resolution a second change would not show, so a file that
    has just been changed is not trusted. On Windows it is the time of creation.
    """
    try:
        found = file.stat()
    except OSError:
        return "missing"
    if not isinstance(found, os.stat_result):
        return f"{found.st_size} {found.st_mtime_ns}" if isinstance(file, UrlPath) and file.dated else None
    if os.name == "nt" or found.st_ctime > time.time() - SETTLED:
        return None
    return f"{found.st_dev} {found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"


def images_below(folder: Path) -> list[Path]:
    """List the image files in a folder and in those below it; hidden ones are ignored, and a folder that cannot be read is told."""
    return [folder / name for name in _names_below(str(folder))]


def _names_below(folder: str, seen: set[tuple[int, int]] | None = None) -> list[str]:
    """Return their paths relative to the folder; each folder is visited once, however many links lead to it."""
    seen, state = set() if seen is None else seen, os.stat(folder)  # noqa: PTH116
    if (state.st_dev, state.st_ino) in seen:
        return []
    seen.add((state.st_dev, state.st_ino))
    found: list[str] = []
    for name, is_folder in _listed(folder):
        place = f"{folder}{os.sep}{name}"
        found += [f"{name}{os.sep}{below}" for below in _names_below(place, seen)] if is_folder else [name]
    return found


def _listed(folder: str) -> list[tuple[str, bool]]:
    """Name the image files and the folders in a folder, and say which are folders.

    The listing itself says what each entry is: of a million files none is looked at, unless it is a link.
    """
    try:
        with os.scandir(folder) as entries:
            kinds = [(entry.name, _kind(entry)) for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be read ({error.strerror}); its images would be missing unnoticed"
        ) from error
    endings = tuple(SUFFIXES)
    return [
        (name, kind == "folder")
        for name, kind in sorted(kinds)
        if kind == "folder" or (kind == "file" and name.lower().endswith(endings))
    ]


def _kind(entry: os.DirEntry[str]) -> str:
    try:
        return "folder" if entry.is_dir() else "file" if entry.is_file() else "neither"
    except OSError:  # a link that goes in circles
        return "neither"


def select(images: ImageSet, options: Mapping[str, Any]) -> ImageSet:
    """Take the range `rows = [start, stop]` of a set, then every n-th so that at most `sample` images are left, where asked for."""
    rows, sample = options.get("rows"), options.get("sample")
    if rows is not None:
        whole = isinstance(rows, Sequence) and len(rows) == 2 and all(isinstance(value, int) for value in rows)
        if not whole or not 0 <= rows[0] < rows[1] <= len(images):
            raise DataError(f"{images.source}: rows must be [start, stop] within {len(images)} images, got {rows!r}")
        images = Part(images, range(rows[0], rows[1]), f"{rows[0]}:{rows[1]}")
    if sample is not None:
        if not isinstance(sample, int) or isinstance(sample, bool) or sample < 1:
            raise DataError(f"{images.source}: sample must be a whole number of at least 1, got {sample!r}")
        step = max(1, -(-len(images) // sample))
        if step > 1:
            images = Part(images, range(0, len(images), step), f"::{step}")
    return images

"""Sets of images: what they have in common, those made of image files, and parts and sequences of other sets."""

from __future__ import annotations

import glob
import os
import re
import time
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import accumulate, islice
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
SET_SUFFIXES = frozenset({".npz", ".txt", ".parquet", ".arrow", ".tar"})
"""Suffixes of files that contain or list many images."""


class ImageSet(ABC):
    """A sequence of images, possibly labelled, that can be read in any order.

    Args:
        source: where it was opened from, without any absolute path.
        labels: the class of each image, if known.
        classes: the names of the classes, if known.
    """

    parallel = False
    """Whether images are read independently, so that threads help."""
    channels = 3
    """The number of channels of each image."""
    hold = 1
    """The number of blocks kept in memory by a set that is read in blocks."""
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
        """Read one image; a DataError says why it cannot be read."""

    def encoded(self, index: int) -> bytes | None:
        """Return the bytes of one image's file; None if images are arrays."""
        return None

    def item(self, index: int) -> str:
        """Return the name of one image."""
        return str(index)

    def files(self, start: int, stop: int) -> Iterable[Path | UrlPath]:
        """Return the files that the images of a range are read from; empty if they are not read from files."""
        return ()

    def blocks(self) -> list[int] | None:
        """Return where the blocks that are read as a whole start, and where the last ends; None if any order is equally fast."""
        return None

    def portion(self, start: int, stop: int) -> ImageSet:
        """Return a range of the images without labels, as a set that is cheap to send to a process on any machine."""
        return Part(self, range(start, stop), f"{start}:{stop}")

    def present(self) -> bool:
        """Whether any of its files exists, if it is made of files."""
        return True

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
        return contents(self.root / self.items[index])

    def picture(self, index: int) -> Picture:
        file = self.root / self.items[index]
        return decode_picture(contents(file), name=readable(file.name))

    def files(self, start: int, stop: int) -> Iterable[Path | UrlPath]:
        return [self.root / name for name in self.items[start:stop]]

    def digest(self, index: int) -> str:
        return sha256_of((os.fsencode(self.items[index]) + b"\0", super().digest(index)))

    def portion(self, start: int, stop: int) -> ImageSet:
        return FileSet(self.root.absolute(), self.items[start:stop], self.source)

    def present(self) -> bool:
        return any((self.root / name).exists() for name in self.items)


class Part(ImageSet):
    """Some of the images of another set, such as the first thousand or every tenth."""

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


class JoinedSet(ImageSet):
    """Several sets one after the other, each with a prefix for the names of its images."""

    def __init__(self, parts: Sequence[tuple[ImageSet, str]]) -> None:
        super().__init__("images")
        self.parts = list(parts)
        self.parallel = all(part.parallel for part, _ in self.parts)
        self.channels = self.parts[0][0].channels if self.parts else 3
        self.reads = "\0".join(part.reads for part, _ in self.parts)
        self._starts = [0, *accumulate(len(part) for part, _ in self.parts)]

    def __len__(self) -> int:
        return self._starts[-1]

    def item(self, index: int) -> str:
        part, prefix, place = self._place(index)
        return readable(f"{prefix}{part.item(place)}")

    def encoded(self, index: int) -> bytes | None:
        part, _, place = self._place(index)
        return part.encoded(place)

    def picture(self, index: int) -> Picture:
        part, _, place = self._place(index)
        return part.picture(place)

    def files(self, start: int, stop: int) -> Iterable[Path | UrlPath]:
        return dict.fromkeys(file for part, _, low, high in self._cut(start, stop) for file in part.files(low, high))

    def stamp(self, start: int, stop: int) -> str:
        return sha256_of(part.stamp(low, high) for part, _, low, high in self._cut(start, stop))

    def portion(self, start: int, stop: int) -> ImageSet:
        return JoinedSet([(part.portion(low, high), prefix) for part, prefix, low, high in self._cut(start, stop)])

    def present(self) -> bool:
        return any(part.present() for part, _ in self.parts)

    def _place(self, index: int) -> tuple[ImageSet, str, int]:
        number = bisect_right(self._starts, index) - 1
        return *self.parts[number], index - self._starts[number]

    def _cut(self, start: int, stop: int) -> Iterator[tuple[ImageSet, str, int, int]]:
        """Yield the sets that a range covers, each with its prefix and its own range."""
        for (part, prefix), first in zip(self.parts, self._starts, strict=False):
            low, high = max(start - first, 0), min(stop - first, len(part))
            if low < high:
                yield part, prefix, low, high


def select(images: ImageSet, options: Mapping[str, Any]) -> ImageSet:
    """Return the range `rows = [start, stop]` of a set, then every n-th image so that at most `sample` are left, if given."""
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


def stamp_of(images: ImageSet, start: int, stop: int, memory: Path | None) -> str:
    """Return the stamp of a range of images; files that have not changed since it was computed are not read again.

    `memory` is a folder that remembers the stamp of each state of the files; without it the images are read.
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


def folder_set(root: Path | UrlPath, classes: Sequence[str] = ()) -> FileSet:
    """Open a folder of images: one folder per class, or all in one without labels; hidden and dangling entries are ignored.

    `classes` are the class folders in the order of the network's outputs; without them they are sorted, numbers as numbers.
    """
    if not root.is_dir():
        raise DataError(f"{root.name}: must be a folder of images, got {'a file' if root.exists() else 'nothing'}")
    if isinstance(root, UrlPath):
        names = [name for name in root.listing() if (root / name).suffix.lower() in SUFFIXES]
    else:
        names = []
        for name, is_folder in _listed(str(root)):
            below = _names_below(f"{root}{os.sep}{name}") if is_folder else []
            names += [f"{name}{os.sep}{file}" for file in below] if is_folder else [name]
    folders: dict[str, list[str]] = {}
    for name in names:
        head, separator, _ = name.partition("/" if isinstance(root, UrlPath) else os.sep)
        folders.setdefault(head if separator else "", []).append(name)
    top = folders.pop("", [])
    if top or not folders:
        return FileSet(root, [*top, *(file for name in in_order(folders) for file in folders[name])], root.name)
    order = list(classes) or in_order(folders)
    unknown = sorted(set(folders) - set(order))
    if unknown:
        raise DataError(
            f"{root.name}: {len(unknown)} of its {len(folders)} folders are not classes of the network"
            f" ({abridged(unknown)}); remove them or list them in classes"
        )
    labels = np.array([label for label, name in enumerate(order) for _ in folders.get(name, [])], dtype=np.int64)
    return FileSet(root, [file for name in order for file in folders.get(name, [])], root.name, labels, order)


def in_order(names: Iterable[str]) -> list[str]:
    """Sort the names of classes: as numbers if all are (0, 1, 2, 10), else as text."""
    listed = list(names)
    numbers = all(name.isdecimal() for name in listed)
    return sorted(listed, key=lambda name: (int(name) if numbers else 0, name))


def find_images(arguments: Iterable[str]) -> Iterator[Path]:
    """Yield the image files that files, folders and patterns name, in order; an argument without any is an error."""
    for text in arguments:
        path = Path(text).expanduser()
        if path.is_dir():
            found = images_below(path)
        elif path.exists():
            found = [path]
        else:
            # A file whose name looks like a pattern was found above.
            found = sorted(Path(name) for name in glob.glob(str(path), recursive=True))  # noqa: PTH207
            found = [file for file in found if file.is_file()]
        if not found:
            raise DataError(
                f"no image at {text}; give files, folders, patterns in quotes, or - to read a list of paths"
            )
        yield from found


def file_sets(paths: Iterable[Path], count: int) -> Iterator[FileSet]:
    """Yield image files, whose paths may arrive one by one, as sets of at most `count`."""
    rest = iter(paths)
    while names := [str(path) for path in islice(rest, count)]:
        yield FileSet(Path(), names, "images")


def images_below(folder: Path) -> list[Path]:
    """Return the image files in a folder and in those below it, without hidden ones; a folder that cannot be read is an error."""
    return [folder / name for name in _names_below(str(folder))]


def _names_below(folder: str, seen: set[tuple[int, int]] | None = None) -> list[str]:
    """Return their paths relative to the folder; each folder is visited once, however many links lead to it."""
    seen, state = set() if seen is None else seen, os.stat(folder)  # noqa: PTH116
    if (state.st_dev, state.st_ino) in seen:
        return []
    seen.add((state.st_dev, state.st_ino))
    found: list[str] = []
    for name, is_folder in _listed(folder):
        below = _names_below(f"{folder}{os.sep}{name}", seen) if is_folder else []
        found += [f"{name}{os.sep}{file}" for file in below] if is_folder else [name]
    return found


def _listed(folder: str) -> list[tuple[str, bool]]:
    """Return the image files and the folders in a folder, and whether each is a folder.

    The listing itself tells what an entry is: of a million files none is opened, unless it is a link.
    """
    try:
        with os.scandir(folder) as entries:
            kinds = sorted((entry.name, _kind(entry)) for entry in entries if not entry.name.startswith("."))
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be read ({error.strerror}); its images would be missing unnoticed"
        ) from error
    endings = tuple(SUFFIXES)
    return [
        (name, kind == "folder")
        for name, kind in kinds
        if kind == "folder" or (kind == "file" and name.lower().endswith(endings))
    ]


def _kind(entry: os.DirEntry[str]) -> str:
    try:
        return "folder" if entry.is_dir() else "file" if entry.is_file() else "neither"
    except OSError:  # a link that goes in circles
        return "neither"


def pick(source: str, kind: str, what: str, wanted: str | None, usual: Sequence[str], names: Sequence[str]) -> str:
    """Return the array or column of images or labels: the one that is wanted, else the first usual one; labels may be missing."""
    if wanted is not None and wanted not in names:
        raise DataError(f"{source}: has no {kind} {wanted!r}; it has {', '.join(names)}")
    found = wanted or next((name for name in usual if name in names), "")
    if not found and what == "images":
        raise DataError(f'{source}: which {kind} holds the {what}? It has {", ".join(names)}; set {what} = "..."')
    return found

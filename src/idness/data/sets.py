"""Image sets: the base class, sets of image files or arrays, and parts and concatenations of other sets."""

from __future__ import annotations

import glob
import json
import math
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from itertools import accumulate, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idness.core.errors import DataError, StoreError
from idness.core.files import atomic_write, key_of, sha256_of
from idness.core.text import abridged, readable
from idness.data.decoding import MAX_PIXELS, SUFFIXES, contents, decode_picture, to_rgb
from idness.data.urls import explained, is_dated, listing, name_of, state_of

if TYPE_CHECKING:
    from idness.data.urls import Place

Picture = Image.Image | NDArray[np.uint8]
AT_ONCE = 1024
"""Number of images that are hashed together."""


class ImageSet:
    """A sequence of images, possibly labelled, that can be read in any order.

    Args:
        items: the entries that images are read from, one per image.
        source: the name or location of the set, without any absolute path.
        labels: the class of each image, if known.
        classes: the names of the classes, if known.
    """

    parallel = False
    """Whether images can be read independently by several threads."""
    channels = 3
    """The number of channels of each image."""
    hold = 1
    """The number of blocks kept in memory by a set that is read in blocks."""
    reads = ""
    """The array or column that images are read from, if files contain several."""

    def __init__(
        self, items: Any, source: str, labels: NDArray[np.int64] | None = None, classes: Sequence[str] = ()
    ) -> None:
        self.items, self.source, self.labels, self.classes = items, source, labels, tuple(classes)

    def __len__(self) -> int:
        return len(self.items)

    def encoded(self, index: int) -> bytes | None:
        """Return the bytes of one image's file; `None` if images are arrays."""
        return None

    def picture(self, index: int) -> Picture:
        """Return one image; raise `DataError` with the reason if it cannot be read."""
        return decode_picture(self.encoded(index) or b"", name=self.item(index).rpartition("/")[2])

    def item(self, index: int) -> str:
        """Return the name of one image."""
        return str(index)

    def values(self, column: str, start: int, stop: int) -> list[Any]:
        """Return the values of a user's column for a range of images."""
        raise DataError(f"{self.source}: has no column {column!r}; only Parquet tables and tar files have columns")

    def files(self, start: int, stop: int) -> Sequence[Place]:
        """Return the files that the images of a range are read from; empty if they are not read from files."""
        return ()

    def blocks(self) -> list[int] | None:
        """Return where blocks that are read as a whole start, and where the last one ends; `None` if any order is equally fast."""
        return None

    def portion(self, start: int, stop: int) -> ImageSet:
        """Return a range of the images without labels, as a set that is cheap to send to another process or machine."""
        return part_of(self, range(start, min(stop, len(self))), f"{start}:{stop}")

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"labels": None}

    def present(self) -> bool:
        """Whether any file of the set exists; true for a set without files."""
        files = self.files(0, len(self))
        return not files or any(file.exists() for file in files)

    def digest(self, index: int) -> str:
        """Return a hash of one image's content, or of the reason why it cannot be read."""
        try:
            data = self.encoded(index)
            return sha256_of(np.asarray(self.picture(index)).tobytes() if data is None else data)
        except DataError as error:
            return sha256_of(str(error))

    def stamp(self, start: int, stop: int, memory: Path | None = None) -> str:
        """Return a hash of the content of a range of images, or of the state of files in an object store.

        `memory` is a folder that caches the hash for each state of local files, so that unchanged files are not read again.
        """
        state = self.state(start, stop)
        if state is not None and all(map(is_dated, self.files(start, stop))):
            return state
        place = None if memory is None or state is None else memory / state[:2] / state
        if place is not None and place.is_file():
            return place.read_text()
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            digests = (pool.map if self.parallel else map)(self.digest, range(start, min(stop, len(self))))
            found = sha256_of(digests)
        if place is not None:
            with suppress(StoreError):  # the only consequence is that images are read again next time
                atomic_write(place, found)
        return found

    def state(self, start: int, stop: int) -> str | None:
        """Return a hash of the state (size, times, inode) of the files of a range, without reading them; `None` if it is inconclusive."""
        states = [state_of(file) for file in self.files(start, stop)]
        if not states or None in states:
            return None
        items = (self.item(index) for index in range(start, min(stop, len(self))))
        return key_of(self.reads, *items, *(state for state in states if state))

    def fingerprint(self, memory: Path | None = None) -> str:
        """Return a hash of the content and labels of all images; `memory` is that of `stamp`."""
        spans = ((low, min(low + AT_ONCE, len(self))) for low in range(0, len(self), AT_ONCE))
        labels = b"" if self.labels is None else self.labels.tobytes()
        return sha256_of((*(self.stamp(start, stop, memory) for start, stop in spans), labels))


class FileSet(ImageSet):
    """Image files below a folder, which may be a URL."""

    parallel = True

    def __init__(self, root: Place, items: Sequence[str], source: str, *labels_and_classes: Any) -> None:
        super().__init__(list(items), source, *labels_and_classes)
        self.root = root

    def item(self, index: int) -> str:
        return readable(self.items[index])

    def encoded(self, index: int) -> bytes:
        return contents(self.root / self.items[index])

    def files(self, start: int, stop: int) -> Sequence[Place]:
        return [self.root / name for name in self.items[start:stop]]

    def portion(self, start: int, stop: int) -> ImageSet:
        return FileSet(self.root.absolute(), self.items[start:stop], self.source)


class ArraySet(ImageSet):
    """Images in memory: an array (N, H, W), (N, H, W, channels) or (N, channels, H, W), or a list or data set of images.

    An image is a path, the bytes of a file, a PIL image, or an array or tensor of pixels, uint8 or float in [0, 1]; an item of a data
    set may also be a pair of image and label, or a record of columns. Grey images become RGB. `normalised` is the mean and standard
    deviation with which float tensors were normalised; `prepared` tensors have the size of the network's input.
    """

    def __init__(
        self,
        items: Any,
        source: str = "images",
        labels: NDArray[np.int64] | None = None,
        classes: Sequence[str] = (),
        normalised: tuple[Sequence[float], Sequence[float]] | None = None,
        prepared: bool = False,
    ) -> None:
        super().__init__(items, source, labels, classes)
        self.normalised, self.prepared = normalised, prepared
        if isinstance(items, np.ndarray) and items.dtype == np.uint8:
            self.channels = check_images(source, items.dtype, items.shape)
        self.parallel = isinstance(items, list) and all(isinstance(item, bytes) for item in items)

    def item(self, index: int) -> str:
        image = self.items[index] if isinstance(self.items, list | tuple) else None
        return str(image) if isinstance(image, str | os.PathLike) else str(index)

    def encoded(self, index: int) -> bytes | None:
        return bytes(self.items[index]) if self.parallel else None

    def picture(self, index: int) -> Picture:
        with explained(self.source, f"image {index} cannot be read"):  # data sets raise errors of many types
            image = image_and_label(self.items[index])[0]
            if isinstance(image, Image.Image):
                return to_rgb(str(index), image)
        if isinstance(image, str | os.PathLike | bytes):
            return decode_picture(image, name=str(index))
        pixels = np.asarray(image)
        if pixels.ndim not in (2, 3) or pixels.dtype.kind not in "uf":
            wanted = "a path, bytes, a PIL image or an array (H, W), (H, W, 3) or (3, H, W)"
            given = f"{type(image).__name__} of shape {pixels.shape}"
            raise DataError(f"{self.source}: image {index} must be {wanted}, got {given}")
        if pixels.dtype.kind == "f":
            if self.normalised is not None:
                mean, std = (np.reshape(numbers, (-1, 1, 1)) for numbers in self.normalised)
                pixels = pixels * std + mean
            if pixels.size and not (pixels.min() > -0.02 and pixels.max() < 1.02):
                given = f"{pixels.min():.3g} to {pixels.max():.3g}; if it is normalised, pass preprocessing= with its mean and std"
                raise DataError(f"{self.source}: values of image {index} must be in [0, 1], got {given}")
            pixels = np.clip(np.rint(pixels * 255), 0, 255).astype(np.uint8)
        return channels_last(pixels)

    def portion(self, start: int, stop: int) -> ImageSet:
        whole = not isinstance(self.items, np.ndarray)
        return super().portion(start, stop) if whole else ArraySet(self.items[start:stop], self.source)


def image_and_label(item: Any) -> tuple[Any, Any]:
    """Return image and label of an item of a data set; the label is `None` if missing or in another column."""
    if isinstance(item, Mapping):
        images = [value for value in item.values() if isinstance(value, Image.Image | bytes | np.ndarray)]
        return next((item[key] for key in ("image", "img") if key in item), images[0] if images else None), None
    if isinstance(item, tuple | list) and len(item) == 2 and np.ndim(item[1]) == 0:
        return item[0], item[1]
    if isinstance(item, tuple) and len(item) == 1:  # a TensorDataset without labels
        return item[0], None
    return item, None


class View(ImageSet):
    """A selection of the images of several sets, each set with a prefix for the names of its images."""

    def __init__(
        self, parts: Sequence[tuple[ImageSet, str]], places: Sequence[int] | None = None, source: str = "images"
    ) -> None:
        sets = [part for part, _ in parts]
        self.parts, self._starts = list(parts), [0, *accumulate(map(len, sets))]
        places = range(self._starts[-1]) if places is None else places
        known = [part.labels for part in sets if part.labels is not None]
        alike = len(known) == len(sets) > 0 and len({part.classes for part in sets}) == 1
        labels = np.concatenate(known)[np.asarray(places, np.int64)] if alike else None
        super().__init__(places, source, labels, sets[0].classes if alike or len(sets) == 1 else ())
        self.parallel = all(part.parallel for part in sets)
        self.channels = sets[0].channels if sets else 3
        self.reads = "\0".join(part.reads for part in sets)

    def item(self, index: int) -> str:
        part, prefix, place = self._at(index)
        return readable(f"{prefix}{part.item(place)}")

    def encoded(self, index: int) -> bytes | None:
        part, _, place = self._at(index)
        return part.encoded(place)

    def picture(self, index: int) -> Picture:
        part, _, place = self._at(index)
        return part.picture(place)

    def files(self, start: int, stop: int) -> Sequence[Place]:
        runs = self._runs(start, stop)
        return list(dict.fromkeys(file for part, _, low, high in runs for file in part.files(low, high)))

    def values(self, column: str, start: int, stop: int) -> list[Any]:
        return [value for part, _, low, high in self._runs(start, stop) for value in part.values(column, low, high)]

    def portion(self, start: int, stop: int) -> ImageSet:
        return View([(part.portion(low, high), prefix) for part, prefix, low, high in self._runs(start, stop)])

    def _at(self, index: int) -> tuple[ImageSet, str, int]:
        place = self.items[index]
        number = bisect_right(self._starts, place) - 1
        return *self.parts[number], place - self._starts[number]

    def _runs(self, start: int, stop: int) -> Iterator[tuple[ImageSet, str, int, int]]:
        """Yield consecutive images of one set as one range, with the set and its prefix."""
        places = ((index, *self._at(index)) for index in range(start, min(stop, len(self))))
        for _, group in groupby(places, key=lambda found: (id(found[1]), found[3] - found[0])):
            run = list(group)
            _, part, prefix, low = run[0]
            yield part, prefix, low, low + len(run)


def part_of(whole: ImageSet, places: Sequence[int], note: str) -> ImageSet:
    """Return a part of a set, such as the first thousand images or every tenth."""
    return View([(whole, "")], places, f"{whole.source}[{note}]")


def select(images: ImageSet, options: Mapping[str, Any]) -> ImageSet:
    """Return a set restricted to the range `rows`, then to `per_class` images of each class, then to at most `sample`, evenly spaced."""
    rows, per_class, sample = (options.get(name) for name in ("rows", "per_class", "sample"))
    if rows is not None:
        whole = isinstance(rows, Sequence) and len(rows) == 2 and all(type(value) is int for value in rows)
        if not whole or not 0 <= rows[0] < rows[1] <= len(images):
            raise DataError(f"{images.source}: rows must be [start, stop] within {len(images)} images, got {rows!r}")
        images = part_of(images, range(*rows), f"{rows[0]}:{rows[1]}")
    for name, value in (("per_class", per_class), ("sample", sample)):
        if value is not None and (type(value) is not int or value < 1):
            raise DataError(f"{images.source}: {name} must be a whole number of at least 1, got {value!r}")
    if per_class is not None and images.labels is not None:
        first = [np.flatnonzero(images.labels == label)[:per_class] for label in np.unique(images.labels)]
        if sum(map(len, first)) < len(images):
            images = part_of(images, np.sort(np.concatenate(first)).tolist(), f"{per_class} per class")
    step = 1 if sample is None else -(-len(images) // sample)
    return part_of(images, range(0, len(images), step), f"::{step}") if step > 1 else images


def known_labels(values: Any) -> NDArray[np.int64] | None:
    """Return labels as an array; `None` unless all are non-negative whole numbers (negative means unknown)."""
    with suppress(ValueError):  # lists of several lengths
        found = np.asarray([] if values is None else values)
        if found.ndim == 1 and np.issubdtype(found.dtype, np.integer) and found.min(initial=0) >= 0:
            return found.astype(np.int64)
    return None


def check_images(name: str, dtype: Any, shape: tuple[int, ...]) -> int:
    """Return the number of channels of an array of images; raise if it does not contain images."""
    axis = _channel_axis(shape[1:]) if len(shape) == 4 else None
    if dtype != np.uint8 or (len(shape) != 3 and axis is None) or 0 in shape[1:]:
        raise DataError(f"{name}: images must be uint8 (N, H, W) or with channels, got {dtype} of shape {shape}")
    found = 1 if axis is None else shape[1 + axis]
    if math.prod(shape[1:]) > found * MAX_PIXELS:
        raise DataError(f"{name}: images must have at most {MAX_PIXELS:,} pixels, got shape {shape}; make them smaller")
    return 3 if found == 1 else found


def channels_last(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return an image as (H, W, channels), grey as RGB (converting it back to grey is exact)."""
    if image.ndim == 3 and _channel_axis(image.shape) == 0:
        image = np.ascontiguousarray(image.transpose(1, 2, 0))
    elif image.ndim == 2:
        image = image[:, :, None]
    return np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image


def as_image(picture: Picture) -> Image.Image:
    """Return an array (H, W, channels) as an image for display, with its first three channels or its first one."""
    if isinstance(picture, np.ndarray):
        shown = picture[:, :, :3] if picture.shape[2] >= 3 else picture[:, :, 0]
        return Image.fromarray(np.ascontiguousarray(shown))
    return picture


def _channel_axis(shape: tuple[int, ...]) -> int | None:
    """Return the channel axis: the last or first one of length 1 or 3, else whichever is shorter than both others; or `None`."""
    for axis in (2, 0):
        if shape[axis] in (1, 3):
            return axis
    return next((axis for axis in (2, 0) if shape[axis] < min(shape[1], shape[2 - axis])), None)


def folder_set(root: Place, classes: Sequence[str] = ()) -> FileSet:
    """Open a folder of images: one folder per class, or all in one without labels; hidden and dangling entries are ignored.

    `classes` are the class folders in the order of the network's outputs; by default they are sorted, numbers numerically.
    """
    source, separator = name_of(root), os.sep if isinstance(root, Path) else "/"
    if not root.is_dir():
        raise DataError(f"{source}: must be a folder of images, got {'a file' if root.exists() else 'nothing'}")
    folders: dict[str, list[str]] = {}
    for name in _names_below(str(root)) if isinstance(root, Path) else listing(root, tuple(SUFFIXES)):
        folders.setdefault(name.partition(separator)[0] if separator in name else "", []).append(name)
    top = folders.pop("", [])
    if top or not folders:
        return FileSet(root, [*top, *(file for name in in_order(folders) for file in folders[name])], source)
    order = list(classes) or in_order(folders)
    unknown = sorted(set(folders) - set(order))
    if unknown:
        raise DataError(f"{source}: folders are not classes of the network ({abridged(unknown)}); remove or list them")
    labels = np.array([label for label, name in enumerate(order) for _ in folders.get(name, [])], dtype=np.int64)
    return FileSet(root, [file for name in order for file in folders.get(name, [])], source, labels, order)


def in_order(names: Iterable[str]) -> list[str]:
    """Return class names sorted: numerically if all are numbers (0, 1, 2, 10), else as text."""
    listed = list(names)
    numbers = all(name.isdecimal() for name in listed)
    return sorted(listed, key=lambda name: (int(name) if numbers else 0, name))


def find_images(arguments: Iterable[str]) -> Iterator[Path]:
    """Yield the image files of paths, folders and patterns, in order; an argument without any is an error."""
    for text in arguments:
        path = Path(text).expanduser()
        if path.is_dir():
            found = [path / name for name in _names_below(str(path))]
        elif path.exists():
            found = [path]
        else:
            # A file whose name looks like a pattern was found above.
            matches = map(Path, glob.glob(str(path), recursive=True))  # noqa: PTH207
            found = sorted(file for file in matches if file.is_file())
        if not found:
            raise DataError(f"no images at {text}; pass files, folders, quoted patterns, or - for a list of paths")
        yield from found


def _names_below(folder: str, seen: set[tuple[int, int]] | None = None) -> list[str]:
    """Return the paths of the image files below a folder, relative to it and in order.

    Each folder is visited once, however many links lead to it. The types of entries come from the listing, so that no file is
    opened unless it is a link.
    """
    seen, found = set() if seen is None else seen, list[str]()
    with explained(folder, "cannot be read", "check its permissions"), os.scandir(folder) as entries:
        visible = sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)
        state = os.stat(folder)  # noqa: PTH116
    if (state.st_dev, state.st_ino) in seen:
        return []
    seen.add((state.st_dev, state.st_ino))
    for entry in visible:
        with suppress(OSError):  # a circular link
            if entry.is_dir():
                found += [f"{entry.name}{os.sep}{name}" for name in _names_below(entry.path, seen)]
            elif entry.is_file() and entry.name.lower().endswith(tuple(SUFFIXES)):
                found.append(entry.name)
    return found


@cache
def imagenet_classes() -> tuple[str, ...]:
    """Return the WordNet ids of the ImageNet-1K classes, which are the names of its folders, in the usual order."""
    return tuple(json.loads(Path(__file__).with_name("imagenet.json").read_text(encoding="utf-8")))


def read_classes(given: str | Sequence[str], base: Path | None = None) -> tuple[str, ...]:
    """Return class names in the order of a network's outputs.

    `given` is a list of names, `imagenet`, a text file with one name per line (relative to `base`), or names separated by commas.
    """
    if not isinstance(given, str):
        return tuple(given)
    if given == "imagenet":
        return imagenet_classes()
    file, lines = (base or Path()) / Path(given).expanduser(), given.split(",")
    if file.is_file():
        with explained(file.name, "must be a text file with one class name per line"):
            lines = file.read_text(encoding="utf-8-sig").splitlines()
    names = tuple(name.strip() for name in lines if name.strip())
    if len(names) < 2:
        forms = "a text file with one name per line, names separated by commas, or 'imagenet'"
        raise DataError(f"classes must be {forms}; got {given!r}")
    return names

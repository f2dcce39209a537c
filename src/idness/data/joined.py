"""Several sets of images one after the other, as one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path

from idness.core.errors import DataError
from idness.core.files import sha256_of
from idness.core.wording import masked, readable
from idness.data.activations import ActivationsSet
from idness.data.finding import SETS, find_images
from idness.data.parquet import TableSet
from idness.data.sets import FileSet, ImageSet, Picture
from idness.data.sources import PREFIXES, kind_of, open_set
from idness.data.urls import UrlPath, is_url


class JoinedSet(ImageSet):
    """Shows several sets as one.

    Args:
        parts: the sets, each with what stands before the names of its images.
    """

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
        number, place = self._place(index)
        part, before = self.parts[number]
        return readable(f"{before}{part.item(place)}")

    def encoded(self, index: int) -> bytes | None:
        number, place = self._place(index)
        return self.parts[number][0].encoded(place)

    def picture(self, index: int) -> Picture:
        number, place = self._place(index)
        return self.parts[number][0].picture(place)

    def files(self, start: int, stop: int) -> Iterable[Path | UrlPath]:
        return dict.fromkeys(
            file for number, low, high in self._cut(start, stop) for file in self.parts[number][0].files(low, high)
        )

    def stamp(self, start: int, stop: int) -> str:
        return sha256_of(self.parts[number][0].stamp(low, high) for number, low, high in self._cut(start, stop))

    def portion(self, start: int, stop: int) -> ImageSet:
        cut = self._cut(start, stop)
        return JoinedSet(
            [(self.parts[number][0].portion(low, high), self.parts[number][1]) for number, low, high in cut]
        )

    def present(self) -> bool:
        return any(part.present() for part, _ in self.parts)

    def _place(self, index: int) -> tuple[int, int]:
        number = bisect_right(self._starts, index) - 1
        return number, index - self._starts[number]

    def _cut(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Find the sets that a range touches, and the range of each."""
        for number, (part, _) in enumerate(self.parts):
            low, high = max(start - self._starts[number], 0), min(stop - self._starts[number], len(part))
            if low < high:
                yield number, low, high


def open_images(arguments: Iterable[str]) -> ImageSet:
    """Open all that a user names as one set: files, folders, patterns, and sets such as tables, tar files and lists, also by URL."""
    parts: list[tuple[ImageSet, str]] = []
    single: list[str] = []
    for text in arguments:
        if is_url(text) or text.partition(":")[0] in PREFIXES or _is_set(Path(text).expanduser()):
            parts += [*_single(single), named_set(text)]
            single = []
            continue
        for path in find_images([text]):
            if path.suffix.lower() in SETS:
                parts += [*_single(single), named_set(str(path))]
                single = []
            else:
                single.append(str(path))
    parts += _single(single)
    return parts[0][0] if len(parts) == 1 and not parts[0][1] else JoinedSet(parts)


def _is_set(path: Path) -> bool:
    """Tell whether a place is one set, and no image or folder of image files."""
    return kind_of(path) != "folder" if path.is_dir() else path.suffix.lower() in SETS and path.is_file()


def _single(paths: list[str]) -> list[tuple[ImageSet, str]]:
    return [(FileSet(Path(), paths, "images"), "")] if paths else []


def named_set(text: str) -> tuple[ImageSet, str]:
    """Open a set, and give what stands before the names of its images: its place."""
    images = open_set(text if is_url(text) else str(Path(text).expanduser()))
    if isinstance(images, ActivationsSet):
        raise DataError(f"{masked(text)}: must hold images, got activations; give pictures or an array of images")
    if isinstance(images, FileSet):
        place = str(images.root)
        return images, "" if place == "." else f"{place}/"
    if isinstance(images, TableSet) or text.endswith(".npz") or text.partition(":")[0] in PREFIXES:
        return images, f"{masked(text)}#"
    return images, f"{masked(text if not text.endswith('.tar') else text.rpartition('/')[0] or '.')}/"

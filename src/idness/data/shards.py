"""Sets of images in WebDataset shards: tar files in which the files of one name are one sample."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from idness.core.errors import DataError
from idness.data.decoding import SUFFIXES, decode_picture
from idness.data.sets import ImageSet, Picture
from idness.data.urls import UrlPath

LABELS = ("label", "cls", "class")
"""Fields of a sample's .json that may hold its class."""


@dataclass
class _Sample:
    """The position of a sample's image in its shard, and its class."""

    start: int = -1
    size: int = 0
    label: int = -1


class ShardSet(ImageSet):
    """Images in tar files, read by offset in any order without unpacking.

    The class is in a `.cls` file of the image's name, as a number, or in a `.json` as its `label`, `cls` or `class`.
    """

    parallel = True

    def __init__(self, path: Path | UrlPath, classes: Sequence[str] = ()) -> None:
        super().__init__(path.name, None, classes)
        found_files: list[Any] = sorted(path.glob("*.tar"), key=str) if path.is_dir() else [path]
        self._files: list[Path | UrlPath] = found_files
        found = [(number, sample) for number, file in enumerate(self._files) for sample in _samples(file)]
        self._places = np.array([(number, s.start, s.size) for number, s in found], np.int64).reshape(-1, 3)
        labels = np.array([sample.label for _, sample in found], np.int64)
        if len(labels) and labels.min() >= 0:
            self.labels = labels

    def __len__(self) -> int:
        return len(self._places)

    def item(self, index: int) -> str:
        number, start, _ = self._places[index]
        return f"{self._files[number].name}@{start}"

    def portion(self, start: int, stop: int) -> ImageSet:
        part = copy(self)
        part._places, part.labels = self._places[start:stop], None
        numbers, places = np.unique(part._places[:, 0], return_inverse=True)
        part._files = [self._files[number].absolute() for number in numbers]
        part._places = np.column_stack([places.reshape(-1), part._places[:, 1:]])
        return part

    def present(self) -> bool:
        return any(file.exists() for file in self._files)

    def encoded(self, index: int) -> bytes:
        number, start, size = (int(value) for value in self._places[index])
        try:
            with self._files[number].open("rb") as file:
                file.seek(start)
                return file.read(size)
        except OSError as error:
            raise DataError(f"{self._files[number].name}: cannot be read ({error.strerror or error})") from error

    def picture(self, index: int) -> Picture:
        return decode_picture(self.encoded(index))

    def files(self, start: int, stop: int) -> Iterable[Path | UrlPath]:
        return [self._files[number] for number in np.unique(self._places[start:stop, 0])]


def _samples(file: Path | UrlPath) -> Iterator[_Sample]:
    """Return the samples of one shard in order, without those that have no image."""
    samples: dict[str, _Sample] = {}
    try:
        whole = file.stat().st_size
        with file.open("rb") as opened, tarfile.open(fileobj=opened, mode="r:") as archive:
            for member in archive:
                # As in WebDataset, a sample's name ends at the first dot of the file name.
                place = PurePosixPath(member.name)
                stem, _, kind = place.name.partition(".")
                if not member.isreg() or not stem:
                    continue
                if member.offset_data + member.size > whole:
                    raise DataError(f"{file.name}: is cut off: its end is missing; fetch it again")
                _note(samples.setdefault(str(place.with_name(stem)), _Sample()), archive, member, kind.lower())
    except (OSError, tarfile.TarError) as error:
        raise DataError(f"{file.name}: is not an uncompressed tar file ({error}); decompress it") from error
    return (sample for sample in samples.values() if sample.start >= 0)


def _note(sample: _Sample, archive: tarfile.TarFile, member: tarfile.TarInfo, kind: str) -> None:
    """Add one file of a shard to its sample."""
    if f".{kind.rpartition('.')[2]}" in SUFFIXES:
        sample.start, sample.size = member.offset_data, member.size
    elif kind in ("cls", "json"):
        content = archive.extractfile(member)
        assert content is not None  # a regular file
        try:
            said = json.loads(content.read())
            value = next((said[name] for name in LABELS if name in said), -1) if isinstance(said, dict) else said
            sample.label = int(value)
        except (ValueError, TypeError):
            sample.label = -1

"""Image sets packed into files: arrays in .npz files, columns of Parquet tables, and tar files (WebDataset)."""

from __future__ import annotations

import json
import tarfile
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from idness.core.errors import DataError, needed
from idness.data.decoding import SUFFIXES
from idness.data.sets import ArraySet, ImageSet, View, check_images, known_labels
from idness.data.urls import explained, name_of

if TYPE_CHECKING:
    from idness.data.urls import Place

Names = Sequence[str]
TABLES = ("*.parquet", "data/*.parquet")
"""The patterns of the tables in a folder."""
IMAGE_COLUMNS, LABEL_COLUMNS = ("image", "img", "images", "picture"), ("label", "labels", "fine_label", "class")
LABELS = ("label", "cls", "class")
"""Fields of a sample's .json that may contain its class."""


class NpzSet(ArraySet):
    """Images in an array of an .npz file; the arrays of images and labels are found by their usual names unless given."""

    def __init__(
        self, path: Path, images: str | None = None, labels: str | None = None, classes: Sequence[str] = ()
    ) -> None:
        name, self.path = path.name, path.absolute()
        with explained(name, "is not an .npz file of uint8 images"), np.load(path, allow_pickle=False) as arrays:
            chosen = _pick(name, images, ("images", "data", "x", "arr_0"), arrays.files, arrays.files)
            pixels, known = arrays[chosen], None
            check_images(f"{name}: array {chosen}", pixels.dtype, pixels.shape)
            if label := _pick(name, labels, ("labels", "label", "y", "targets"), arrays.files, None):
                known = arrays[label]
                if known.shape != (len(pixels),) or known.dtype.kind not in "iu":
                    given = f"{known.dtype} of shape {known.shape} for {len(pixels)} images"
                    raise DataError(f"{name}: labels must be one whole number per image, got {given}")
        super().__init__(pixels, name, known_labels(known), classes)
        self.reads = chosen

    def files(self, start: int, stop: int) -> Sequence[Place]:
        return (self.path,)


class TableSet(ImageSet):
    """Images in a column of Parquet files; `hold` row groups are in memory at a time.

    The columns of images and labels are found by their usual names unless given; `split` is the prefix of a folder's files.
    """

    def __init__(
        self, path: Place, images: str | None = None, labels: str | None = None, split: str | None = None
    ) -> None:
        super().__init__((), name_of(path))
        # For each row group: its file, its number there, and the position of the file's first row in the set.
        self._groups, self._starts = list[tuple["Place", int, int]](), [0]
        self._held, self.columns = dict[int, Any](), list[str]()
        for file in _tables(path, split):
            with explained(name_of(file), "is not a Parquet table"), _parquet(file) as table:
                schema, begin = table.schema_arrow, self._starts[-1]
                for number in range(table.num_row_groups):
                    self._groups.append((file.absolute(), number, begin))
                    self._starts.append(self._starts[-1] + table.metadata.row_group(number).num_rows)
            self.columns = self.columns or schema.names
            binary = [name for name, kind in zip(schema.names, schema.types, strict=True) if "binary" in str(kind)]
            self.reads = self.reads or _pick(self.source, images, IMAGE_COLUMNS, schema.names, binary)
            label = _pick(self.source, labels, LABEL_COLUMNS, self.columns, None)
            if not {self.reads, label} - {""} <= set(schema.names):
                raise DataError(f"{name_of(file)}: must have the other tables' columns ({', '.join(self.columns)})")
        self.items = range(self._starts[-1])
        self.classes = _class_names(schema.metadata)
        if label:
            numbers = range(len(self._groups))
            self.labels = known_labels([value for group in numbers for value in self._read(group, label).to_pylist()])

    def blocks(self) -> list[int]:
        return list(self._starts)

    def item(self, index: int) -> str:
        file, _, begin = self._groups[self._group(index)]
        return f"{name_of(file)}#{index - begin}"

    def encoded(self, index: int) -> bytes:
        group = self._group(index)
        if group not in self._held:
            while len(self._held) >= self.hold:
                del self._held[next(iter(self._held))]
            self._held[group] = self._read(group, self.reads)
        value = self._held[group][index - self._starts[group]].as_py()
        data = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(data, bytes):
            raise DataError(f"row {index}: column {self.reads} must contain encoded images, got {type(data).__name__}")
        return data

    def files(self, start: int, stop: int) -> Sequence[Place]:
        groups = self._groups[self._group(start) : self._group(stop - 1) + 1]
        return list(dict.fromkeys(file for file, _, _ in groups))

    def values(self, column: str, start: int, stop: int) -> list[Any]:
        if column not in self.columns:
            raise DataError(f"{self.source}: has no column {column!r}; it has {', '.join(self.columns)}")
        low, high = self._group(start), self._group(stop - 1)
        found = [value for group in range(low, high + 1) for value in self._read(group, column).to_pylist()]
        return found[start - self._starts[low] : stop - self._starts[low]]

    def _group(self, index: int) -> int:
        return bisect_right(self._starts, index) - 1

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_held": {}}

    def _read(self, group: int, column: str) -> Any:
        file, number, _ = self._groups[group]
        with explained(name_of(file), "is damaged", "download it again"), _parquet(file) as table:
            return table.read_row_group(number, columns=[column]).column(column)


def _parquet(file: Place) -> Any:
    parquet = needed("pyarrow.parquet", "a Parquet data set", "tables", DataError)
    return parquet.ParquetFile(file if isinstance(file, Path) else file.open("rb"))


def _tables(path: Place, split: str | None) -> list[Place]:
    if path.is_file():
        return [path]
    found = sorted((file for pattern in TABLES for file in path.glob(pattern)), key=str)
    chosen: list[Place] = [file for file in found if file.name.startswith(split or "")]
    splits = sorted({file.name.split("-")[0] for file in found if "-" in file.name})
    if not chosen or (split is None and len(splits) > 1):
        names = ", ".join(splits) or "none"
        raise DataError(f'{name_of(path)}: has tables of the splits {names}, got {split!r}; set split = "..."')
    return chosen


def _class_names(metadata: dict[bytes, bytes] | None) -> tuple[str, ...]:
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"].values()
        named = [spec["names"] for spec in features if isinstance(spec, dict) and spec.get("_type") == "ClassLabel"]
        return tuple(str(name) for name in named[0])
    except (KeyError, ValueError, TypeError, IndexError, AttributeError):
        return ()


class TarSet(ImageSet):
    """Images in a tar file, read by offset in any order without unpacking; files of the same name form a sample (WebDataset).

    The class is a number in a `.cls` file of the image's name, or the `label`, `cls` or `class` in a `.json` file.
    """

    parallel = True

    def __init__(self, path: Place, classes: Sequence[str] = (), images: str | None = None) -> None:
        super().__init__((), name_of(path), None, classes)
        self.path, self.reads = path.absolute(), images or ""
        found, labels, about = dict[str, tuple[str, int, int]](), dict[str, Any](), dict[str, tuple[int, int]]()
        with (
            explained(self.source, "is not a complete, uncompressed tar file", "decompress it or download it again"),
            path.open("rb") as opened,
            tarfile.open(fileobj=opened, mode="r:") as archive,
        ):
            for member in archive:
                # As in WebDataset, a sample's key ends at the first dot of the file name.
                place = PurePosixPath(member.name)
                stem, _, kind = place.name.partition(".")
                if not member.isreg() or not stem:
                    continue
                key, kind = str(place.with_name(stem)), kind.lower()
                if f".{kind.rpartition('.')[2]}" in SUFFIXES and images in (None, kind):
                    if key in found and found[key][0] != member.name:
                        both = f"({found[key][0]}, {member.name}); pass --image-column {kind}"
                        raise DataError(f"{self.source}: sample {key} has several images {both}")
                    found[key] = (member.name, member.offset_data, member.size)
                elif kind in ("cls", "json"):
                    content = archive.extractfile(member)
                    fields = _fields(content.read() if content else b"")
                    labels[key] = next((fields[name] for name in LABELS if name in fields), -1)
                    about |= {key: (member.offset_data, member.size)} if kind == "json" else {}
        self.items = [(key, about.get(key), *place) for key, place in found.items()]
        self.labels = known_labels([labels.get(key, -1) for key in found])

    def item(self, index: int) -> str:
        return str(self.items[index][2])

    def encoded(self, index: int) -> bytes:
        return self._bytes(*self.items[index][3:])

    def values(self, column: str, start: int, stop: int) -> list[Any]:
        """Return a field of each sample's .json, or its key if the column is `__key__`; `None` if there is no such field."""
        if column == "__key__":
            return [key for key, *_ in self.items[start:stop]]
        found = [_fields(self._bytes(*place)) if place else {} for _, place, *_ in self.items[start:stop]]
        if start == 0 and not any(column in fields for fields in found):
            names = ", ".join({name: "" for fields in found for name in fields}) or "no .json files"
            raise DataError(f"{self.source}: no sample has a field {column!r}; the fields are __key__ and {names}")
        return [fields.get(column) for fields in found]

    def _bytes(self, start: int, size: int) -> bytes:
        with explained(self.source, "cannot be read"), self.path.open("rb") as file:
            file.seek(start)
            return file.read(size)

    def files(self, start: int, stop: int) -> Sequence[Place]:
        return (self.path,)


def tar_set(path: Place, classes: Sequence[str] = (), images: str | None = None) -> ImageSet:
    """Open a tar file, or all tar files of a folder, as one set; `images` is the extension of the images if samples have several."""
    if not path.is_dir():
        return TarSet(path, classes, images)
    files: list[Any] = sorted(path.glob("*.tar"), key=str)
    return View([(TarSet(file, classes, images), f"{file.name}/") for file in files], source=name_of(path))


def _fields(data: bytes) -> dict[str, Any]:
    """Return the fields of a sample's .json; a bare value, as in a .cls file, is the label."""
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {LABELS[0]: found}


def _pick(source: str, wanted: str | None, usual: Names, names: Names, possible: Names | None) -> str:
    """Return the wanted array or column, else the first usual one, else the only possible one; empty if `possible` is `None`."""
    if wanted is not None and wanted not in names:
        raise DataError(f"{source}: has no {wanted!r}; it has {', '.join(names)}")
    found = wanted or next((name for name in usual if name in names), "")
    if found or possible is None:
        return found
    if len(possible) != 1:
        raise DataError(
            f"{source}: cannot tell which of {', '.join(names)} contains the images; pass --image-column, or set images"
        )
    return possible[0]

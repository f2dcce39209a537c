"""Sets of images that are packed in files: arrays in .npz files, columns of Parquet and Arrow tables, and tar files (WebDataset)."""

from __future__ import annotations

import json
import math
import tarfile
import weakref
import zipfile
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from idness.core.errors import DataError, needed
from idness.core.files import sha256_of
from idness.data.decoding import SUFFIXES
from idness.data.sets import ImageSet, Picture, View, channels_last, check_images
from idness.data.urls import explained, name_of, suffix_of

if TYPE_CHECKING:
    from idness.data.urls import Place

TABLES = ("*.parquet", "data/*.parquet", "*.arrow")
"""Where a folder's tables are."""
LABELS = ("label", "cls", "class")
"""Fields of a sample's .json that may contain its class."""


class NpzSet(ImageSet):
    """Images of an array in an .npz file, read row by row: the file is never in memory as a whole.

    The arrays of images and labels are found by their usual names if they are not given.
    """

    def __init__(
        self, path: Path, images: str | None = None, labels: str | None = None, classes: Sequence[str] = ()
    ) -> None:
        super().__init__(path.name, None, classes)
        self.path = path.absolute()
        with explained(path.name, "is not an .npz file of uint8 images"):
            names = array_names(path)
            self.reads = _pick(path.name, "array", images, ("images", "data", "x", "arr_0"), names, names)
            label = _pick(path.name, "array", labels, ("labels", "label", "y", "targets"), names, None)
            file, self._shape, kind = open_array(path, self.reads)
            file.close()
            self.channels = check_images(f"{path.name}: array {self.reads}", kind, self._shape)
            self.labels = _read_labels(path, label, len(self)) if label else None

    def __len__(self) -> int:
        return self._shape[0]

    def picture(self, index: int) -> Picture:
        size = math.prod(self._shape[1:])
        try:
            file, start = self._opened
            file.seek(start + index * size)
            image = np.frombuffer(file.read(size), np.uint8).reshape(self._shape[1:])
        except Exception as error:  # zlib, zipfile and the file system have errors of their own
            self.__dict__.pop("_opened", None)  # the next image opens the file again
            raise DataError(f"{self.path.name}: is damaged at image {index} ({error})") from error
        return channels_last(image)

    @cached_property
    def _opened(self) -> tuple[IO[bytes], int]:
        """The array's open file, and the place of its first value."""
        file, *_ = open_array(self.path, self.reads)
        weakref.finalize(self, file.close)
        return file, file.tell()

    def digest(self, index: int) -> str:
        # Raises, unlike that of other sets: if one image is damaged, others may be, too.
        return sha256_of(np.asarray(self.picture(index)).tobytes())

    def files(self, start: int, stop: int) -> Sequence[Place]:
        return (self.path,)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_opened"}


class TableSet(ImageSet):
    """Images in a column of Parquet files, or of a Hugging Face data set saved on disk; `hold` row groups are in memory at a time.

    The columns of images and labels are found by their usual names if they are not given; `split` is the prefix of a folder's files.
    """

    def __init__(
        self, path: Place, images: str | None = None, labels: str | None = None, split: str | None = None
    ) -> None:
        super().__init__(name_of(path))
        needed("pyarrow.parquet", "a Parquet data set", "tables", DataError)
        self._groups: list[tuple[Place, int, int]] = []
        """Of each row group its file, its number there and the number of its first row there."""
        self._starts, self._held = [0], dict[int, Any]()
        names = dict[str, list[str]]()
        for file in _tables(path, split):
            with explained(name_of(file), "is not a Parquet or Arrow table"):
                schema, counts = _shape_of(file)
            names[name_of(file)], first = schema.names, 0
            for group, count in enumerate(counts):
                self._groups.append((file.absolute(), group, first))
                self._starts.append(self._starts[-1] + count)
                first += count
        self.columns = tuple(schema.names)
        binary = [name for name, kind in zip(schema.names, schema.types, strict=True) if "binary" in str(kind)]
        self.reads = _pick(self.source, "column", images, ("image", "img", "images", "picture"), schema.names, binary)
        label = _pick(self.source, "column", labels, ("label", "labels", "fine_label", "class"), schema.names, None)
        for file_name, listed in names.items():
            if not {self.reads, label} - {""} <= set(listed):
                raise DataError(
                    f"{file_name}: must have the columns of the other tables ({', '.join(schema.names)}), got {', '.join(listed)}"
                )
        self.classes = _class_names(schema.metadata)
        if label:
            values = [value for group in range(len(self._groups)) for value in self._read(group, label).to_pylist()]
            if all(isinstance(value, int) and value >= 0 for value in values):
                self.labels = np.array(values, dtype=np.int64)

    def __len__(self) -> int:
        return self._starts[-1]

    def blocks(self) -> list[int]:
        return list(self._starts)

    def item(self, index: int) -> str:
        group = self._group(index)
        file, _, first = self._groups[group]
        return f"{name_of(file)}#{first + index - self._starts[group]}"

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
        with explained(name_of(file), "is damaged", "fetch it again"):
            if suffix_of(file) == ".arrow":
                return _stream(file).column(column)
            with _parquet(file) as table:
                return table.read_row_group(number, columns=[column]).column(column)


def _parquet(file: Place) -> Any:
    parquet = needed("pyarrow.parquet", "a Parquet data set", "tables", DataError)
    return parquet.ParquetFile(file if isinstance(file, Path) else file.open("rb"))


def _stream(file: Place) -> Any:
    arrow = needed("pyarrow", "a Parquet data set", "tables", DataError)
    # Memory-mapped: rows are read on access.
    return arrow.ipc.open_stream(arrow.memory_map(str(file)) if isinstance(file, Path) else file.open("rb")).read_all()


def _shape_of(file: Place) -> tuple[Any, list[int]]:
    """Return the schema of a table, and the number of rows of each row group."""
    if suffix_of(file) == ".arrow":
        stream = _stream(file)
        return stream.schema, [len(stream)]
    with _parquet(file) as table:
        return table.schema_arrow, [table.metadata.row_group(n).num_rows for n in range(table.num_row_groups)]


def _tables(path: Place, split: str | None) -> list[Place]:
    if path.is_file():
        return [path]
    found = sorted((file for pattern in TABLES for file in path.glob(pattern)), key=str)
    chosen: list[Place] = [file for file in found if split is None or file.name.startswith(split)]
    if not chosen:
        names = ", ".join(sorted({file.name.split("-")[0] for file in found})) or "no tables"
        raise DataError(f"{name_of(path)}: has no table whose name begins with {split!r}; it has {names}")
    splits = {file.name.split("-")[0] for file in chosen if file.suffix == ".parquet" and "-" in file.name}
    if split is None and len(splits) > 1:
        raise DataError(
            f'{name_of(path)}: contains the splits {", ".join(sorted(splits))}; choose one with split = "..."'
        )
    return chosen


def _class_names(metadata: dict[bytes, bytes] | None) -> tuple[str, ...]:
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"].values()
        named = [spec["names"] for spec in features if isinstance(spec, dict) and spec.get("_type") == "ClassLabel"]
        return tuple(str(name) for name in named[0])
    except (KeyError, ValueError, TypeError, IndexError, AttributeError):
        return ()


class TarSet(ImageSet):
    """Images in a tar file, read by offset in any order without unpacking: the files of one name are one sample (WebDataset).

    The class is in a `.cls` file of the image's name, as a number, or in a `.json` as its `label`, `cls` or `class`.
    """

    parallel = True

    def __init__(self, path: Place, classes: Sequence[str] = (), images: str | None = None) -> None:
        super().__init__(name_of(path), None, classes)
        self.path, self.reads = path.absolute(), images or ""
        found, labels, about = dict[str, tuple[str, int, int]](), dict[str, int](), dict[str, tuple[int, int]]()
        with (
            explained(self.source, "is not a complete, uncompressed tar file", "decompress it or fetch it again"),
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
                        raise DataError(
                            f"{self.source}: sample {key} has several images, {found[key][0]} and {member.name};"
                            f" pass the ending of one as --image-column ({kind}), or set images in a benchmark file"
                        )
                    found[key] = (member.name, member.offset_data, member.size)
                elif kind in ("cls", "json"):
                    content = archive.extractfile(member)
                    labels[key] = _label(content.read() if content else b"")
                    about |= {key: (member.offset_data, member.size)} if kind == "json" else {}
        self._images = [(key, about.get(key), *place) for key, place in found.items()]
        known = np.array([labels.get(key, -1) for key in found], np.int64)
        self.labels = known if len(known) and known.min() >= 0 else None

    def __len__(self) -> int:
        return len(self._images)

    def item(self, index: int) -> str:
        return self._images[index][2]

    def encoded(self, index: int) -> bytes:
        return self._bytes(*self._images[index][3:])

    def values(self, column: str, start: int, stop: int) -> list[Any]:
        """Return fields of each sample's .json, or with `__key__` its key; `None` if it has no such field."""
        if column == "__key__":
            return [key for key, *_ in self._images[start:stop]]
        found = [_fields(self._bytes(*place)) if place else {} for _, place, *_ in self._images[start:stop]]
        if start == 0 and not any(column in fields for fields in found):
            names = ", ".join({name: "" for fields in found for name in fields}) or "no .json files"
            raise DataError(f"{self.source}: no sample has a field {column!r}; there are __key__ and {names}")
        return [fields.get(column) for fields in found]

    def _bytes(self, start: int, size: int) -> bytes:
        with explained(self.source, "cannot be read"), self.path.open("rb") as file:
            file.seek(start)
            return file.read(size)

    def files(self, start: int, stop: int) -> Sequence[Place]:
        return (self.path,)


def tar_set(path: Place, classes: Sequence[str] = (), images: str | None = None) -> ImageSet:
    """Open a tar file, or all tar files of a folder, as one set; `images` is the ending of the images, if samples have several."""
    if not path.is_dir():
        return TarSet(path, classes, images)
    files: list[Any] = sorted(path.glob("*.tar"), key=str)
    return View([(TarSet(file, classes, images), f"{file.name}/") for file in files], source=name_of(path))


def _fields(data: bytes) -> dict[str, Any]:
    """Return the fields of a sample's .json; a bare value, as in a .cls file, is its label."""
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {LABELS[0]: found}


def _label(data: bytes) -> int:
    fields = _fields(data)
    try:
        return int(next((fields[name] for name in LABELS if name in fields), -1))
    except (ValueError, TypeError):
        return -1


def array_names(path: Path) -> list[str]:
    """Return the names of the arrays of an .npz file."""
    with zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]


def open_array(path: Path, name: str) -> tuple[IO[bytes], tuple[int, ...], np.dtype[Any]]:
    """Open an array of an .npz file at its first value, and return its shape and type; arrays of objects are refused."""
    with zipfile.ZipFile(path) as archive:
        try:
            size = archive.getinfo(f"{name}.npy").file_size
            file = archive.open(f"{name}.npy")  # stays readable: the archive closes with its last member
        except RuntimeError as error:  # encrypted, or packed by an unknown method
            raise DataError(f"{path.name}: array {name} cannot be read ({error}); save it with np.savez") from error
    version = np.lib.format.read_magic(file)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, kind = header(file)
    if kind.hasobject:
        raise DataError(f"{path.name}: array {name} contains Python objects, which could run code; save numbers")
    if min(shape, default=0) < 0 or math.prod(shape) * kind.itemsize > size:
        raise DataError(f"{path.name}: array {name} is shorter than its shape {shape} says; save it again")
    if fortran and len(shape) > 1:
        raise DataError(f"{path.name}: array {name} must be in C order; save np.ascontiguousarray of it")
    return file, shape, kind


def _read_labels(path: Path, name: str, count: int) -> NDArray[np.int64] | None:
    """Return the labels of `count` images, `None` if some are below zero; the header is checked before anything is decompressed."""
    file, shape, kind = open_array(path, name)
    with file:
        if len(shape) != 1 or not np.issubdtype(kind, np.integer):
            raise DataError(f"{path.name}: labels must be a list of whole numbers, got {kind} of shape {shape}")
        if shape != (count,):
            raise DataError(f"{path.name}: must have one label per image, got {shape[0]} for {count} images")
        found = np.frombuffer(file.read(count * kind.itemsize), kind, count).astype(np.int64)
        return found if found.min(initial=0) >= 0 else None


def _pick(
    source: str,
    kind: str,
    wanted: str | None,
    usual: Sequence[str],
    names: Sequence[str],
    possible: Sequence[str] | None,
) -> str:
    """Return the array or column that is wanted, else the first usual one, else the only possible one; with `None` it may be missing."""
    if wanted is not None and wanted not in names:
        raise DataError(f"{source}: has no {kind} {wanted!r}; it has {', '.join(names)}")
    found = wanted or next((name for name in usual if name in names), "")
    if found or possible is None:
        return found
    if len(possible) != 1:
        raise DataError(
            f"{source}: which {kind} contains the images? It has {', '.join(names)};"
            f' pass --image-column, or set images = "..." in a benchmark file'
        )
    return possible[0]

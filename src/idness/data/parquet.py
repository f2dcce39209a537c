"""Sets of images in Parquet files, or in a Hugging Face data set saved on disk."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np

from idness.core.errors import DataError
from idness.core.extras import needed
from idness.data.decoding import decode_picture
from idness.data.sets import ImageSet, Part, Picture, pick
from idness.data.urls import UrlPath

PATTERNS = ("*.parquet", "data/*.parquet", "*.arrow")
"""Where a folder's tables are."""


class TableSet(ImageSet):
    """Images in tables with a column of encoded images; `hold` row groups are in memory at a time.

    The columns of images and labels are found by their usual names if they are not given; `split` is the prefix of a folder's files.
    """

    def __init__(
        self, path: Path | UrlPath, images: str | None = None, labels: str | None = None, split: str | None = None
    ) -> None:
        super().__init__(path.name)
        self._arrow, self._parquet = _libraries()
        self._files = _tables(path, split)
        self._groups: list[tuple[Path | UrlPath, int]] = []
        self._starts = [0]
        columns: list[str] = []
        names: list[str] = []
        for file in self._files:
            columns, counts, names = self._shape(file)
            for group, count in enumerate(counts):
                self._groups.append((file, group))
                self._starts.append(self._starts[-1] + count)
        self.reads = pick(path.name, "column", "images", images, ("image", "img", "images", "picture"), columns)
        label = pick(path.name, "column", "labels", labels, ("label", "labels", "fine_label", "class"), columns)
        self._held: dict[int, Any] = {}
        self.classes = tuple(names)
        if label:
            values = [
                value
                for index in range(len(self._groups))
                for value in self._read(index, [label]).column(label).to_pylist()
            ]
            if all(isinstance(value, int) and value >= 0 for value in values):
                self.labels = np.array(values, dtype=np.int64)

    def __len__(self) -> int:
        return self._starts[-1]

    def blocks(self) -> list[int]:
        return list(self._starts)

    def encoded(self, index: int) -> bytes:
        group = bisect_right(self._starts, index) - 1
        if group not in self._held:
            while len(self._held) >= self.hold:
                del self._held[next(iter(self._held))]
            self._held[group] = self._read(group, [self.reads]).column(self.reads)
        value = self._held[group][index - self._starts[group]].as_py()
        data = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(data, bytes):
            raise DataError(f"row {index}: column {self.reads} must hold encoded images, got {type(data).__name__}")
        return data

    def picture(self, index: int) -> Picture:
        return decode_picture(self.encoded(index))

    def files(self, start: int, stop: int) -> Iterable[Path | UrlPath]:
        low, high = bisect_right(self._starts, start) - 1, bisect_right(self._starts, stop - 1)
        return dict.fromkeys(file for file, _ in self._groups[low:high])

    def portion(self, start: int, stop: int) -> ImageSet:
        low, high = bisect_right(self._starts, start) - 1, bisect_right(self._starts, stop - 1)
        part = copy(self)
        part._groups = [(file.absolute(), group) for file, group in self._groups[low:high]]
        part._starts = [at - self._starts[low] for at in self._starts[low : high + 1]]
        part._files, part._held, part.labels = list({file for file, _ in part._groups}), {}, None
        return Part(part, range(start - self._starts[low], stop - self._starts[low]), f"{start}:{stop}")

    def present(self) -> bool:
        return any(file.exists() for file in self._files)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_arrow", "_parquet")} | {
            "_held": {}
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._arrow, self._parquet = _libraries()

    def _shape(self, file: Path | UrlPath) -> tuple[list[str], list[int], list[str]]:
        """Return the columns, the number of rows of each row group and the class names."""
        try:
            if file.suffix == ".arrow":
                table = self._stream(file)
                return table.column_names, [len(table)], _class_names(table.schema.metadata)
            meta = self._parquet.ParquetFile(_openable(file))
            counts = [meta.metadata.row_group(group).num_rows for group in range(meta.num_row_groups)]
            return meta.schema_arrow.names, counts, _class_names(meta.schema_arrow.metadata)
        except (OSError, ValueError) as error:
            raise DataError(f"{file.name}: is no Parquet or Arrow table ({error})") from error

    def _read(self, group: int, columns: list[str]) -> Any:
        file, number = self._groups[group]
        try:
            if file.suffix == ".arrow":
                return self._stream(file).select(columns)
            return self._parquet.ParquetFile(_openable(file)).read_row_group(number, columns=columns)
        except (OSError, ValueError) as error:
            why = (str(error).splitlines() or [type(error).__name__])[0]
            raise DataError(f"{file.name}: is damaged ({why}); fetch it again") from error

    def _stream(self, file: Path | UrlPath) -> Any:
        if isinstance(file, UrlPath):
            return self._arrow.ipc.open_stream(file.native()).read_all()
        # Memory-mapped: rows are read on access.
        return self._arrow.ipc.open_stream(self._arrow.memory_map(str(file))).read_all()


def _libraries() -> tuple[Any, Any]:
    arrow, parquet = (
        needed(name, "a Parquet data set", "tables", DataError) for name in ("pyarrow", "pyarrow.parquet")
    )
    return arrow, parquet


def _openable(file: Path | UrlPath) -> Any:
    return file.native() if isinstance(file, UrlPath) else file


def _tables(path: Path | UrlPath, split: str | None) -> list[Path | UrlPath]:
    if path.is_file():
        return [path]
    found: list[Path | UrlPath] = sorted((file for pattern in PATTERNS for file in path.glob(pattern)), key=str)
    chosen = [file for file in found if split is None or file.name.startswith(split)]
    if not chosen:
        names = ", ".join(sorted({file.name.split("-")[0] for file in found})) or "no tables"
        raise DataError(f"{path.name}: has no table whose name begins with {split!r}; it has {names}")
    splits = {file.name.split("-")[0] for file in chosen if file.suffix == ".parquet" and "-" in file.name}
    if split is None and len(splits) > 1:
        raise DataError(f'{path.name}: holds the splits {", ".join(sorted(splits))}; choose one with split = "..."')
    return chosen


def _class_names(metadata: dict[bytes, bytes] | None) -> list[str]:
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError):
        return []
    named = [
        spec["names"]
        for spec in features.values()
        if isinstance(spec, dict) and spec.get("_type") == "ClassLabel" and "names" in spec
    ]
    return [str(name) for name in named[0]] if named else []

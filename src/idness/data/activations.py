"""Activations that some other program made, in a safetensors or .npz file, read part by part."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from idness.core.errors import DataError, IdnessError
from idness.core.files import sha256
from idness.core.types import Activations, Head
from idness.data.npz import array_names, open_array

Span = tuple[int, int]
NAMES = ("features", "logits", "labels")
BROKEN = (SafetensorError, OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error)
"""What reading a damaged file of either kind raises."""


class ActivationsSet:
    """Reads a file with features (N, D), and where it has them logits (N, C) and labels (N,).

    Args:
        path: the file.
    """

    head: Head | None = None
    """What makes logits of the features, where the file has none."""

    def __init__(self, path: Path) -> None:
        self.path, self.source = path, path.name
        try:
            shapes = _npz_shapes(path) if path.suffix == ".npz" else _safetensors_shapes(path)
        except BROKEN as error:
            if isinstance(error, IdnessError):
                raise
            raise DataError(f"{path.name}: is no safetensors or .npz file of activations ({error})") from error
        _check_shapes(path.name, shapes)
        self.count, self.features = shapes["features"]
        self.names = [name for name in NAMES if name in shapes]
        self.classes = shapes["logits"][1] if "logits" in shapes else None
        self.labelled = "labels" in shapes

    def __len__(self) -> int:
        return self.count

    def batches(self, size: int) -> Iterator[Activations]:
        """Yield consecutive parts of at most `size` rows, each read when asked for."""
        for part in self._parts(self.names, size):
            if "logits" not in part:
                if self.head is None:
                    raise DataError(f"{self.source}: holds no logits, and there is no head to compute them; add logits")
                part["logits"] = self.head(part["features"].to(self.head.weight))
            yield Activations(part["features"], part["logits"], part.get("labels"))

    def label_range(self) -> tuple[int, int] | None:
        """Give the lowest and the highest label; none where there are no labels."""
        if not self.labelled or not self.count:
            return None
        [part] = self._parts(["labels"], self.count)
        return int(part["labels"].min()), int(part["labels"].max())

    def fingerprint(self) -> str:
        """Hash the file."""
        return sha256(self.path)

    def _parts(self, names: Sequence[str], size: int) -> Iterator[dict[str, Tensor]]:
        spans = [(start, min(start + size, self.count)) for start in range(0, self.count, size)]
        try:
            yield from (_npz_parts if self.path.suffix == ".npz" else _safetensors_parts)(self.path, names, spans)
        except BROKEN as error:
            if isinstance(error, IdnessError):
                raise
            raise DataError(f"{self.source}: is damaged ({error})") from error


def _safetensors_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    with safe_open(path, framework="pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def _safetensors_parts(path: Path, names: Sequence[str], spans: Sequence[Span]) -> Iterator[dict[str, Tensor]]:
    with safe_open(path, framework="pt") as file:
        slices = {name: file.get_slice(name) for name in names}
        for start, stop in spans:
            yield {name: part[start:stop] for name, part in slices.items()}


def _npz_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for name in array_names(path):
        file, shapes[name], kind = open_array(path, name)
        file.close()
        if name in NAMES and kind.kind not in "fiu":
            raise DataError(f"{path.name}: {name} must hold numbers, got {kind}")
    return shapes


def _npz_parts(path: Path, names: Sequence[str], spans: Sequence[Span]) -> Iterator[dict[str, Tensor]]:
    """Read arrays of an archive side by side; it is compressed, so rows come in order only."""
    opened = {name: open_array(path, name) for name in names}
    try:
        for start, stop in spans:
            part = {}
            for name, (file, shape, kind) in opened.items():
                wanted = (stop - start, *shape[1:])
                content = file.read(int(np.prod(wanted)) * kind.itemsize)
                values = np.frombuffer(content, kind).reshape(wanted)
                part[name] = torch.from_numpy(values.astype(kind.newbyteorder("="), copy=True))
            yield part
    finally:
        for file, _, _ in opened.values():
            file.close()


def _check_shapes(name: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
    if "features" not in shapes:
        raise DataError(
            f"{name}: must hold features, and logits if it can, got {', '.join(sorted(shapes)) or 'nothing'}"
        )
    count = shapes["features"][:1]
    for array, axes in (("features", 2), ("logits", 2), ("labels", 1)):
        shape = shapes.get(array)
        if shape is not None and (len(shape) != axes or shape[:1] != count):
            wanted = "one row per image" if axes == 2 else "one number per image"
            raise DataError(f"{name}: {array} must be {wanted}, got shape {shape} beside {shapes['features']} features")

"""Activations that some other program made, in a safetensors or .npz file, read part by part."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from idness.core.documents import Document
from idness.core.errors import DataError, IdnessError
from idness.core.files import sha256, sha256_of
from idness.core.types import Activations, Head, Whole
from idness.data.arrays import array_names, open_array

Span = tuple[int, int]
NAMES = ("features", "logits", "labels")
BROKEN = (SafetensorError, OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error)
"""What reading a damaged file of either kind raises."""


@dataclass(frozen=True)
class Fitted:
    """Says what a file of `idness fit` was made of: how many images, by the network with which head, from where, and with what."""

    images: int
    keep: int
    classes: int
    head_sha256: str
    weights_sha256: str
    network: str
    source: list[str]
    skipped: int
    versions: dict[str, str]
    sha256: str
    """Of all tensors' bytes."""


FITTED = Document(
    content=Fitted,
    version=1,
    absent="run idness fit to make it",
    remedy="delete it and run idness fit again",
    sealed=True,
)
"""The text in the header of such a file."""


class ActivationsSet:
    """Reads a file with features (N, D), and where it has them logits (N, C) and labels (N,).

    A file of `idness fit` is one too: it holds a sample of a set's images, and statistics of all of them.

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
        self.about = None if path.suffix == ".npz" else _about(path)
        if self.about is not None:
            self.classes = self.about.classes
            self.source = f"{path.name} (of {self.about.images:,} images)"

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

    def whole(self) -> Whole | None:
        """Read what is known of all images, where the file holds a sample of them."""
        if self.about is None:
            return None
        tensors, _ = FITTED.tensors_and_texts(self.path)
        if body_sha256(tensors) != self.about.sha256:
            raise FITTED.damaged(self.path.name, "its tensors are not those that were saved")
        return Whole(self.about.images, {name: value for name, value in tensors.items() if "." in name})

    def digests(self) -> NDArray[np.uint8] | None:
        """Read the hashes of the images, where the file has them."""
        if self.about is None:
            return None
        [part] = self._parts(["digests"], self.count)
        return part["digests"].numpy()

    def check_head(self, head: Head) -> None:
        """Refuse the head of another network than the file was made with."""
        if self.about is not None and head_sha256(head) != self.about.head_sha256:
            raise DataError(
                f"{self.path.name}: was made by idness fit with another network ({self.about.network}); run it again with this one"
            )

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


def head_sha256(head: Head) -> str:
    """Hash a head."""
    return sha256_of([value.cpu().contiguous().numpy().tobytes() for value in (head.weight, head.offset)])


def body_sha256(tensors: Mapping[str, Tensor]) -> str:
    """Hash tensors by name."""
    parts = ((name.encode(), tensors[name].contiguous().numpy().tobytes()) for name in sorted(tensors))
    return sha256_of(part for pair in parts for part in pair)


def _about(path: Path) -> Fitted | None:
    with safe_open(path, framework="pt") as file:
        text = (file.metadata() or {}).get("fitted")
    return None if text is None else FITTED.parse(text, path.name)


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
        file, shapes[name], _ = open_array(path, name)
        file.close()
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

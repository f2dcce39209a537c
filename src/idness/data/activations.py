"""The activations of a data set, shard by shard: from a run of the network, a store, or a file that another program wrote."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from idness.core.errors import DataError, StoreError
from idness.core.files import sha256
from idness.core.types import Activations, Head
from idness.data.duplicates import EXACT, common, near, stacked
from idness.data.sets import ImageSet
from idness.data.urls import explained

SHARD = 1024
"""Images per shard; 12 MB for a ResNet-50."""


@dataclass(eq=False)
class ActivationsSet:
    """The activations of one data set; `shards` returns them in order, one in memory at a time, each with index and hashes.

    `count` includes images without activations; `sha256` is the hash of the file if another program wrote it.
    """

    name: str
    count: int
    shards: Callable[[], Iterable[Activations]]
    images: ImageSet | None = None
    role: str = ""
    sha256: str = ""
    index: Tensor | None = field(default=None, init=False)
    """The position of each image that has activations; set by `load`."""
    hashes: Tensor | None = field(default=None, init=False)
    """The hash of each of these images; set by `load`."""
    skipped: list[tuple[int, str]] = field(default_factory=list, init=False)
    """The position of each image without activations, and the reason; set by `load`."""

    def __len__(self) -> int:
        return self.count

    @property
    def source(self) -> str:
        """The name of the source."""
        return self.name

    @cached_property
    def acts(self) -> Activations:
        """All activations, in memory."""
        return self.load()

    def load(self, most: int | None = None, *, step: int = 1) -> Activations:
        """Return activations in memory: of every `step`-th image, from a random sample (seed 0) of at most `most` images."""
        chosen = torch.zeros(self.count, dtype=torch.bool)
        chosen[::step] = True
        if most is not None and most < self.count:
            order = torch.randperm(self.count, generator=torch.Generator().manual_seed(0))
            chosen[order[most:]] = False
        parts, known, self.skipped = list[Activations](), list[tuple[Tensor, Tensor]](), []
        for shard in self.shards():
            assert shard.index is not None
            assert shard.hashes is not None
            self.skipped += shard.skipped
            known.append((shard.index, shard.hashes))
            rows = chosen[shard.index]
            if bool(rows.any()):
                parts.append(shard if bool(rows.all()) else shard[rows])
        if not parts:
            first = self.skipped[0][1] if self.skipped else "it is empty"
            raise DataError(f"{self.name}: none of its {self.count} images can be used; the first: {first}")
        self.index, self.hashes = (torch.cat(column) for column in zip(*known, strict=True))
        return Activations.concat(parts)

    def select(self, rows: slice | Tensor) -> ActivationsSet:
        """Return the given rows of the activations as a new set, in memory."""
        return in_memory(self.name, self.acts[rows], self.images, self.count)

    def with_edited(self, edited: ActivationsSet) -> ActivationsSet:
        """Return the set with the activations of its edited images added as `edited`."""

        def shards() -> Iterator[Activations]:
            for shard, other in zip(self.shards(), edited.shards(), strict=True):
                assert shard.index is not None
                assert other.index is not None
                if not torch.equal(shard.index, other.index):
                    raise DataError(f"{self.name}: some edited images yield NaN or Inf; omit methods with two passes")
                yield replace(shard, edited=other)

        return replace(self, shards=shards)

    def overlap(self, other: ActivationsSet) -> tuple[int, int]:
        """Return the number of images that are also in another set, by the hash of their pixels, and of near-duplicates there."""
        first, second = self.acts, other.acts
        hashes = _array(first.hashes), _array(second.hashes)
        if self.images is None or other.images is None:
            return common(*hashes), 0
        places = _array(first.index), _array(second.index)
        return common(*hashes), near(*hashes, (self.images, other.images), places)


def in_memory(name: str, acts: Activations, images: ImageSet | None = None, count: int | None = None) -> ActivationsSet:
    """Return a set of `count` images whose activations are in memory."""
    found = ActivationsSet(name, len(acts) if count is None else count, lambda: [acts], images)
    found.acts = acts
    return found


def _array(values: Tensor | None) -> NDArray[Any]:
    assert values is not None
    return values.numpy()


class ActivationsFile(ActivationsSet):
    """Activations in a safetensors or .npz file: features (N, D), and optionally logits (N, C) and labels (N,)."""

    head: Head | None = None
    """The head that computes the logits if the file has none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with explained(path.name, "is not a safetensors or .npz file of activations"):
            self.arrays = _arrays(path, "features", "logits", "labels")
        shapes = _shapes(self.arrays)
        if "features" not in shapes:
            raise DataError(f"{path.name}: must contain features (N, D)")
        for array, shape in shapes.items():
            axes, wanted = (1, "number") if array == "labels" else (2, "row")
            if len(shape) != axes or shape[:1] != shapes["features"][:1]:
                given = f"shape {shape} with features of shape {shapes['features']}"
                raise DataError(f"{path.name}: {array} must be one {wanted} per image, got {given}")
        super().__init__(path.name, shapes["features"][0], self._read)
        self.features, self.classes = shapes["features"][1], shapes["logits"][1] if "logits" in shapes else None

    def label_range(self) -> tuple[int, int] | None:
        """Return the lowest and the highest label; None if there are no labels."""
        labels = self.arrays["labels"][:] if "labels" in self.arrays and self.count else None
        return None if labels is None else (int(labels.min()), int(labels.max()))

    def fingerprint(self) -> str:
        """Return the hash of the file."""
        return sha256(self.path)

    def _read(self) -> Iterator[Activations]:
        for start in range(0, self.count, SHARD):
            index = torch.arange(start, min(start + SHARD, self.count))
            with explained(self.name, "is damaged"):
                part = {name: array[start : start + len(index)] for name, array in self.arrays.items()}
            if "logits" not in part:
                if self.head is None:
                    raise DataError(f"{self.name}: has no logits, and there is no head to compute them; add logits")
                part["logits"] = self.head(part["features"].to(self.head.weight))
            acts = Activations(part["features"], part["logits"], part.get("labels"))
            finite = acts.finite
            skipped = tuple((int(place), "its activations are NaN or Inf") for place in index[~finite])
            acts = acts[finite]
            rows = torch.cat([acts.features, acts.logits], dim=1).numpy()
            hashes = torch.from_numpy(stacked(hashlib.blake2b(row, digest_size=EXACT).digest() for row in rows).copy())
            yield replace(acts, index=index[finite], hashes=hashes, skipped=skipped)


def read_head(path: Path) -> tuple[Head, str]:
    """Read a safetensors or .npz file with weight (C, D) and bias (C,), and return the head and the file's hash."""
    remedy = "set head to a safetensors or .npz file with weight and bias"
    with explained(path.name, "is missing or not a safetensors or .npz file", remedy):
        arrays = _arrays(path, "weight", "bias")
        shapes = _shapes(arrays)
        weight = shapes.get("weight", ())
        if len(weight) != 2 or shapes.get("bias", weight[:1]) != weight[:1]:
            raise StoreError(f"{path.name}: must contain weight (C, D) and bias (C,), got {shapes or 'neither'}")
        tensors = {name: array[:] for name, array in arrays.items()}
        return Head(tensors["weight"], tensors.get("bias")), sha256(path)


def _arrays(path: Path, *names: str) -> dict[str, Any]:
    """Open the named arrays that a file contains; arrays of a safetensors file are read when they are sliced."""
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            return {name: torch.from_numpy(file[name]) for name in names if name in file}
    opened: Any = safe_open(path, framework="pt")
    return {name: opened.get_slice(name) for name in names if name in opened.keys()}  # noqa: SIM118


def _shapes(arrays: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(one.shape if isinstance(one, Tensor) else one.get_shape()) for name, one in arrays.items()}

"""Where activations come from, shard by shard: the store, or a file that another program wrote."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from idness.activations.forward import SetActivations
from idness.activations.store import SHARD, FeatureStore, Shard
from idness.core.errors import DataError, IdnessError, StoreError
from idness.core.files import sha256
from idness.core.types import Activations, Head
from idness.data import ActivationsSet, ImageSet
from idness.data.duplicates import EXACT
from idness.data.npz import array_names, open_array


@dataclass(frozen=True)
class Source:
    """Gives a set's activations as often as wanted, one shard in memory at a time."""

    name: str
    role: str
    count: int
    shards: Callable[[], Iterator[Shard]]
    digest: str = ""
    """Identifies the contents where no image was seen."""

    def load(self, most: int | None = None) -> Activations:
        """Read activations into memory: all of them, or a random sample (seed 0) of at most `most` images."""
        chosen = torch.ones(self.count, dtype=torch.bool)
        if most is not None and most < self.count:
            order = torch.randperm(self.count, generator=torch.Generator().manual_seed(0))
            chosen[order[most:]] = False
        parts, skipped = [], list[str]()
        for shard in self.shards():
            skipped += [reason for _, reason in shard.skipped]
            rows = chosen[shard.index]
            if bool(rows.any()):
                parts.append(shard.acts if bool(rows.all()) else shard.acts[rows])
        if not parts:
            first = skipped[0] if skipped else "it is empty"
            raise DataError(f"{self.name}: none of its images can be used; the first: {first}")
        return Activations.concat(parts)


def stored(name: str, role: str, count: int, store: FeatureStore, key: str) -> Source:
    """Give a set of at most so many images from the store."""
    return Source(name, role, count, lambda: store.shards(key))


def sampled(source: Source, images: ImageSet, most: int, name: str = "") -> SetActivations:
    """Give what is kept of one in so many images that at most `most` are left, as `collect` would pick and run them."""
    step = max(1, -(-len(images) // most))
    parts = [(shard, shard.index % step == 0) for shard in source.shards()]
    acts = Activations.concat(shard.acts[rows] for shard, rows in parts)
    index = torch.cat([shard.index[rows] for shard, rows in parts])
    digests = torch.cat([shard.digests[rows] for shard, rows in parts])
    return SetActivations(name or source.name, acts, images, index.numpy(), digests=digests.numpy())


def beside(plain: Source, edited: Source) -> Source:
    """Give a set's activations together with those of its changed images."""

    def shards() -> Iterator[Shard]:
        for shard, other in zip(plain.shards(), edited.shards(), strict=True):
            if not torch.equal(shard.index, other.index):
                raise DataError(
                    f"{plain.name}: the network gives NaN or Inf for some of its images once changed; leave out methods of two passes"
                )
            yield replace(shard, acts=replace(shard.acts, edited=other.acts))

    return replace(plain, shards=shards)


def given(name: str, role: str, data: ActivationsSet) -> Source:
    """Give a set from an activations file."""

    def shards() -> Iterator[Shard]:
        start = 0
        for acts in data.batches(SHARD):
            index = torch.arange(start, start + len(acts))
            start += len(acts)
            finite = acts.finite
            skipped = [(int(place), "its activations hold NaN or Inf") for place in index[~finite]]
            yield Shard(acts[finite], index[finite], _digests(acts[finite]), skipped)

    return Source(name, role, len(data), shards, data.fingerprint())


def _digests(acts: Activations) -> Tensor:
    """Hash each row, so that the same activations are known again in another file."""
    rows = torch.cat([acts.features, acts.logits], dim=1).contiguous().numpy()
    joined = b"".join(hashlib.blake2b(row.tobytes(), digest_size=EXACT).digest() for row in rows)
    return (
        torch.frombuffer(bytearray(joined), dtype=torch.uint8).view(-1, EXACT)
        if joined
        else torch.zeros(0, EXACT, dtype=torch.uint8)
    )


def read_head(path: Path) -> tuple[Head, str]:
    """Read a head, a safetensors or .npz file with weight and bias, and hash it."""
    try:
        tensors = _read_npz(path) if path.suffix == ".npz" else load_file(path)
        return Head(tensors["weight"], tensors.get("bias")), sha256(path)
    except (OSError, SafetensorError, ValueError, BadZipFile) as error:
        if isinstance(error, IdnessError):
            raise
        raise DataError(
            f"{path.name}: is missing or no safetensors or .npz file; head names a file with weight and bias"
        ) from error
    except KeyError as error:
        raise StoreError(f"{path.name}: must hold weight (and bias), got {', '.join(tensors)}") from error


def _read_npz(path: Path) -> dict[str, Tensor]:
    """Read weight (C, D) and bias (C,); the headers are checked before anything is unpacked."""
    names = array_names(path)
    headers = {name: open_array(path, name) for name in names if name in ("weight", "bias")}
    tensors = {name: torch.empty(0) for name in names}
    try:
        shapes = {name: shape for name, (_, shape, _) in headers.items()}
        weight = shapes.get("weight", ())
        if len(weight) != 2 or shapes.get("bias", weight[:1]) != weight[:1]:
            raise StoreError(f"{path.name}: must hold weight (C, D) and bias (C,), got {shapes or ', '.join(names)}")
        for name, (file, shape, kind) in headers.items():
            if kind.kind not in "fiu":
                raise StoreError(f"{path.name}: {name} must hold numbers, got {kind}")
            values = np.frombuffer(file.read(math.prod(shape) * kind.itemsize), kind).reshape(shape)
            tensors[name] = torch.from_numpy(values.astype(kind.newbyteorder("="), copy=True))
    finally:
        for file, _, _ in headers.values():
            file.close()
    return tensors

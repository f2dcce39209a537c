"""Activations on disk: computed once for a network, a data set and a preprocessing, and never trusted unchecked.

A shard holds the activations of up to 1,024 consecutive images. Its file is named after a key, the hash of everything that made
it, and after the hash of its bytes: it is written once, in one step, and whoever reads it can tell whether it is whole. So an
interrupted run loses at most one shard, two processes may write at once, and a changed image costs its own shard only. A
manifest lists the shards of a finished set.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from idness.core.documents import Document, packed
from idness.core.errors import IdnessWarning
from idness.core.files import OutputFolder, atomic_write, discard, sha256, sha256_of, sweep
from idness.core.types import Activations

FORMAT = 1
SHARD = 1024
"""How many images a shard covers: 12 MB for a ResNet-50."""


@dataclass
class Shard:
    """Holds the activations of consecutive images, their places and hashes, and why some are missing."""

    acts: Activations
    index: Tensor
    digests: Tensor
    skipped: list[tuple[int, str]] = field(default_factory=list)


@dataclass(frozen=True)
class ShardRef:
    """Names a shard on disk."""

    key: str
    sha256: str

    @property
    def path(self) -> Path:
        """The file below the store's root."""
        return Path("shards") / self.key[:2] / f"{self.key}-{self.sha256}.safetensors"


@dataclass(frozen=True)
class Manifest:
    """Lists the shards of a finished set, and says whose they are."""

    key: str
    about: dict[str, Any]
    shards: list[ShardRef]


_DOCUMENT = Document(
    content=Manifest,
    version=FORMAT,
    absent="run the benchmark to compute it",
    remedy="delete it and run again to compute it anew",
)


class FeatureStore:
    """Keeps activations on disk.

    Args:
        root: the folder; without it `$IDNESS_CACHE`, or `idness` in the user's cache folder.
    """

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        self.root = Path(root) if root is not None else default_root()

    def check(self, *, resume: bool) -> None:
        """Raise unless the folder is new or empty, or with `resume` a store."""
        kinds = ("sets", "shards", "engines")
        OutputFolder(self.root, lambda root: [name for name in kinds if (root / name).is_dir()]).check(resume=resume)

    @property
    def stamps(self) -> Path:
        """The folder that remembers the content hashes of images, by the state of their files."""
        return self.root / "stamps"

    def find(self, key: str) -> ShardRef | None:
        """Find a whole shard; a damaged one is removed, with a warning."""
        folder = self.root / "shards" / key[:2]
        for path in sorted(folder.glob(f"{key}-{'[0-9a-f]' * 64}.safetensors")):
            ref = ShardRef(key, path.stem.partition("-")[2])
            with suppress(OSError):  # another process may have removed it
                if sha256(path) == ref.sha256:
                    return ref
            warnings.warn(
                f"FeatureStore: {path.name} is damaged; it is removed and computed again", IdnessWarning, stacklevel=2
            )
            discard(path)
        return None

    def put(self, key: str, shard: Shard) -> ShardRef:
        """Write a shard in one step."""
        tensors = {
            "features": shard.acts.features,
            "logits": shard.acts.logits,
            "index": shard.index,
            "digests": shard.digests,
        }
        if shard.acts.labels is not None:
            tensors["labels"] = shard.acts.labels
        about = {"about": json.dumps({"format": FORMAT, "skipped": shard.skipped})}
        content = packed(tensors, about)
        ref = ShardRef(key, sha256_of(content))
        atomic_write(self.root / ref.path, content)
        return ref

    def finish(self, key: str, refs: Sequence[ShardRef], about: dict[str, Any]) -> None:
        """Write the manifest of a set whose shards are all there."""
        _DOCUMENT.write(self._manifest(key), Manifest(key, about, list(refs)))
        for folder in {(self.root / ref.path).parent for ref in refs}:
            sweep(folder)

    def __contains__(self, key: str) -> bool:
        return self._manifest(key).is_file()

    def refs(self, key: str) -> list[ShardRef]:
        """List the shards of a finished set."""
        return _DOCUMENT.read(self._manifest(key)).shards

    def shards(self, key: str) -> Iterator[Shard]:
        """Read the shards of a finished set in order, one in memory at a time, each checked."""
        for ref in self.refs(key):
            yield self.read(ref)

    def read(self, ref: ShardRef) -> Shard:
        """Read one shard and check it."""
        path = self.root / ref.path
        tensors, texts = _DOCUMENT.tensors_and_texts(path, ref.sha256)
        try:
            skipped = json.loads(texts["about"])["skipped"]
            acts = Activations(tensors["features"], tensors["logits"], tensors.get("labels"))
            return Shard(
                acts, tensors["index"], tensors["digests"], [(int(place), str(reason)) for place, reason in skipped]
            )
        except (KeyError, ValueError, TypeError) as error:
            raise _DOCUMENT.damaged(path, f"of another version: {error}") from error

    def skipped(self, ref: ShardRef) -> list[tuple[int, str]]:
        """Read which images of a shard are missing, and why, without its activations."""
        path = self.root / ref.path
        try:
            with safe_open(path, framework="pt") as opened:
                about = json.loads((opened.metadata() or {})["about"])
            return [(int(place), str(reason)) for place, reason in about["skipped"]]
        except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
            raise _DOCUMENT.damaged(path, f"{type(error).__name__}: {error}") from error

    def stream(self, key: str) -> Iterator[Activations]:
        """Read the activations of a finished set shard by shard."""
        return (shard.acts for shard in self.shards(key) if len(shard.acts))

    def load(self, key: str) -> Activations:
        """Read all activations of a finished set into memory."""
        return Activations.concat(self.stream(key))

    def _manifest(self, key: str) -> Path:
        return self.root / "sets" / f"{key}.json"


def default_root() -> Path:
    """Give the folder that is used when none is named."""
    named = os.environ.get("IDNESS_CACHE")
    if named:
        return Path(named).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "idness"


def empty_shard(skipped: list[tuple[int, str]], width: int, classes: int, labelled: bool, digest: int) -> Shard:
    """Make the shard of a range in which no image could be read."""
    labels = torch.zeros(0, dtype=torch.long) if labelled else None
    acts = Activations(torch.zeros(0, width), torch.zeros(0, classes), labels)
    return Shard(acts, torch.zeros(0, dtype=torch.long), torch.zeros(0, digest, dtype=torch.uint8), skipped)

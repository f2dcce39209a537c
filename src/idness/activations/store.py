"""Activations on disk: computed once per network, data set and preprocessing, and verified when they are read.

A shard contains the activations of up to 1,024 consecutive images. Its file name consists of a key, the hash of everything that
determines its content, and the hash of its bytes; it is written atomically, and a reader can verify that it is complete. Therefore,
an interrupted run loses at most one shard, several processes can write at the same time, and a changed image invalidates only its own
shard. A manifest lists the shards of a finished set.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from idness.core.documents import Document, packed
from idness.core.errors import IdnessWarning
from idness.core.files import OutputFolder, atomic_write, discard, sha256, sha256_of
from idness.core.types import Activations

FORMAT = 1


@dataclass(frozen=True)
class StoreManifest:
    """The shards of a finished set, each with `key` and `sha256`, and their origin."""

    key: str
    about: dict[str, Any]
    shards: list[dict[str, str]]


_DOCUMENT = Document(
    content=StoreManifest,
    version=FORMAT,
    absent="run the benchmark to compute it",
    remedy="delete it and run again to recompute it",
)


class FeatureStore:
    """A folder of stored activations.

    Args:
        root: the folder; by default `$IDNESS_CACHE`, or `idness` in the user's cache folder.
    """

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        self.root = Path(root) if root is not None else default_root()
        self._verified: dict[str, tuple[int, ...]] = {}

    def check(self, *, resume: bool) -> None:
        """Raise unless the folder is new or empty or, with `resume`, a store."""
        kinds = ("sets", "shards", "engines")
        OutputFolder(self.root, lambda root: [name for name in kinds if (root / name).is_dir()]).check(resume=resume)

    @property
    def stamps(self) -> Path:
        """The folder that caches the content hashes of images, by the state of their files."""
        return self.root / "stamps"

    def find(self, key: str) -> str | None:
        """Return the hash of a complete shard, or `None`; a damaged shard is removed with a warning."""
        for path in sorted(self._shard(key, "").parent.glob(f"{key}-{'[0-9a-f]' * 64}.safetensors")):
            digest = path.stem.partition("-")[2]
            with suppress(OSError):  # another process may have removed it
                state = _state(path)
                if sha256(path) == digest:
                    self._verified[digest] = state
                    return digest
            why = f"{path.name} is damaged; it will be removed and recomputed"
            warnings.warn(f"FeatureStore: {why}", IdnessWarning, stacklevel=2)
            discard(path)
        return None

    def put(self, key: str, acts: Activations) -> str:
        """Write a shard atomically and return the hash of its file."""
        tensors = {"features": acts.features, "logits": acts.logits, "index": acts.index, "digests": acts.hashes}
        if acts.labels is not None:
            tensors["labels"] = acts.labels
        content = packed(tensors, {"about": json.dumps({"format": FORMAT, "skipped": list(acts.skipped)})})
        digest = sha256_of(content)
        atomic_write(self._shard(key, digest), content)
        return digest

    def finish(self, key: str, shards: Mapping[str, str], about: dict[str, Any]) -> None:
        """Write the manifest of a set whose shards (hashes by key) are all stored."""
        names = [{"key": shard, "sha256": digest} for shard, digest in shards.items()]
        _DOCUMENT.write(self._manifest(key), StoreManifest(key, about, names))

    def __contains__(self, key: str) -> bool:
        return self._manifest(key).is_file()

    def names(self, key: str) -> dict[str, str]:
        """Return the shards of a finished set in order, as hashes by key."""
        return {shard["key"]: shard["sha256"] for shard in _DOCUMENT.read(self._manifest(key)).shards}

    def shards(self, key: str) -> Iterator[Activations]:
        """Yield the shards of a finished set in order, each verified, one in memory at a time."""
        for shard, digest in self.names(key).items():
            yield self.read(shard, digest)

    def read(self, key: str, digest: str) -> Activations:
        """Return one shard; its hash is verified unless this object has verified it and the file has not changed since."""
        path = self._shard(key, digest)
        state = _state(path) if path.is_file() else ()
        known = bool(state) and self._verified.get(digest) == state
        tensors = _DOCUMENT.tensors(path, None if known else digest)
        self._verified[digest] = state
        acts = Activations(tensors["features"], tensors["logits"], tensors.get("labels"))
        return replace(acts, index=tensors["index"], hashes=tensors["digests"], skipped=_skipped(path))

    def skipped(self, key: str) -> list[tuple[int, str]]:
        """Return the images of a finished set without activations and the reasons, read from the headers of its shards."""
        return [entry for shard in self.names(key).items() for entry in _skipped(self._shard(*shard))]

    def load(self, key: str) -> Activations:
        """Return all activations of a finished set, in memory."""
        return Activations.concat(shard for shard in self.shards(key) if len(shard))

    def _manifest(self, key: str) -> Path:
        return self.root / "sets" / f"{key}.json"

    def _shard(self, key: str, digest: str) -> Path:
        return self.root / "shards" / key[:2] / f"{key}-{digest}.safetensors"


def _skipped(path: Path) -> list[tuple[int, str]]:
    """Return the images missing from a shard, read from its header."""
    try:
        with safe_open(path, framework="pt") as opened:
            about = json.loads(opened.metadata()["about"])
        return [(int(place), str(reason)) for place, reason in about["skipped"]]
    except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
        raise _DOCUMENT.damaged(path, f"{type(error).__name__}: {error}") from error


def _state(path: Path) -> tuple[int, ...]:
    """Return attributes of a file that change whenever its content does."""
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def default_root() -> Path:
    """Return the default folder."""
    named = os.environ.get("IDNESS_CACHE")
    if named:
        return Path(named).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "idness"

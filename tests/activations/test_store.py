from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from idness.activations.store import FeatureStore, default_root
from idness.core.errors import IdnessWarning, StoreError
from idness.core.files import key_of
from idness.core.types import Activations
from tests.children import exit_code, started

SAMPLES = Path(__file__).parents[1] / "samples"


def shard(seed: int = 0, count: int = 5) -> Activations:
    rng = torch.Generator().manual_seed(seed)
    acts = Activations(
        torch.rand(count, 4, generator=rng), torch.rand(count, 3, generator=rng), torch.arange(count) % 3
    )
    hashes = torch.randint(0, 256, (count, 16), dtype=torch.uint8, generator=rng)
    return replace(acts, index=torch.arange(count), hashes=hashes, skipped=[(9, "is bad")])


def filled(root: Path) -> FeatureStore:
    store = FeatureStore(root)
    keys = [key_of(str(seed)) for seed in range(3)]
    store.finish("whole", {key: store.put(key, shard(seed)) for seed, key in enumerate(keys)}, {"source": "x"})
    return store


def files(root: Path) -> list[Path]:
    return sorted((root / "shards").rglob("*.safetensors"))


def test_round_trip_keeps_everything(tmp_path: Path) -> None:
    store = filled(tmp_path)
    assert "whole" in store
    found = list(store.shards("whole"))
    for seed, part in enumerate(found):
        assert torch.equal(part.features, shard(seed).features)
        assert torch.equal(part.labels, shard(seed).labels)  # type: ignore[arg-type]
        assert torch.equal(part.hashes, shard(seed).hashes)
        assert part.skipped == [(9, "is bad")]
    assert len(store.load("whole")) == 15
    assert store.put(key_of("0"), shard(0)) == store.find(key_of("0"))
    assert store.find("b" * 64) is None
    assert len(files(tmp_path)) == 3


def test_a_store_of_version_0_1_is_read(tmp_path: Path) -> None:
    """Twelve images of noise and one file that is not an image, run through the network of the other samples."""
    store, head = FeatureStore(SAMPLES / "store-v1"), load_file(SAMPLES / "activations-v1" / "head.safetensors")
    [manifest] = (SAMPLES / "store-v1" / "sets").iterdir()
    [found] = store.shards(manifest.stem)
    assert torch.allclose(found.features @ head["weight"].T + head["bias"], found.logits, atol=1e-4)
    assert found.index.tolist() == list(range(12))
    assert found.hashes.shape == (12, 16)
    [(place, reason)] = found.skipped
    assert place == 12
    assert "got a file that begins with b'no image'" in reason
    assert store.skipped(manifest.stem) == found.skipped
    [(key, digest)] = store.names(manifest.stem).items()
    assert store.find(key) == digest
    assert FeatureStore(tmp_path).put(key, found) == digest  # the same bytes are written today


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_every_damage_is_noticed(tmp_path: Path, damage: str) -> None:
    store = filled(tmp_path)
    assert len(store.load("whole")) == 15  # which verifies every shard
    path = files(tmp_path)[1]
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes({"flip": bytes(content), "cut": bytes(content[:-9]), "empty": b""}[damage])
    os.utime(path, ns=(1, 1))  # changed, even if the clock has not moved on
    with pytest.raises(
        StoreError, match=r"safetensors: is damaged \(its sha256 does not match the saved one\); delete it"
    ):
        store.load("whole")
    key = path.stem.partition("-")[0]
    with pytest.warns(IdnessWarning, match="is damaged; it will be removed"):
        assert store.find(key) is None
    assert not path.exists()


def test_missing_sets_shards_and_damaged_manifests_are_reported(tmp_path: Path) -> None:
    store = filled(tmp_path)
    with pytest.raises(StoreError, match=r"sets: contains no other\.json; run the benchmark"):
        store.load("other")
    files(tmp_path)[0].unlink()
    with pytest.raises(StoreError, match=r"contains no \w+-\w+\.safetensors; run the benchmark"):
        store.load("whole")
    (tmp_path / "sets" / "whole.json").write_text("{")
    with pytest.raises(StoreError, match="is damaged"):
        store.load("whole")


def put_forty(root: Path) -> None:
    store = FeatureStore(root)
    store.finish("both", {key_of(str(seed)): store.put(key_of(str(seed)), shard(seed)) for seed in range(40)}, {})


def test_two_writers_at_once(tmp_path: Path) -> None:
    running = [started(put_forty, tmp_path) for _ in range(2)]
    assert [exit_code(process) for process in running] == [0, 0]
    store = FeatureStore(tmp_path)
    assert len(store.load("both")) == 200
    assert len(files(tmp_path)) == 40
    assert not list(tmp_path.rglob("*.part"))


def test_default_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("IDNESS_CACHE", raising=False)
    assert default_root() == tmp_path / "idness"
    monkeypatch.setenv("IDNESS_CACHE", str(tmp_path / "own"))
    assert FeatureStore().root == tmp_path / "own"

from __future__ import annotations

import io
import os
import signal
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from idness.activations import extract as extraction
from idness.activations.extract import extract
from idness.activations.forward import collect
from idness.activations.source import beside, sampled, stored
from idness.activations.store import FeatureStore
from idness.core.errors import DataError, IdnessWarning
from idness.core.files import _host
from idness.core.progress import Listener
from idness.data import ArraySet, ImageSet, Preprocessing, folder_set, open_set, sets
from idness.data.npz import NpzSet
from idness.networks.engines import ChosenPrecision
from idness.networks.open import Network
from idness.networks.split import SplitModel
from tests.children import exit_code, started
from tests.pictures import network, pictures

SETTING = Preprocessing(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extraction, "SHARD", 20)


class Counting(nn.Module):
    """Counts the images that pass."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.seen = model, 0

    def forward(self, images: Tensor) -> Tensor:
        self.seen += len(images)
        return self.model(images)


def made(preprocessing: Preprocessing = SETTING) -> tuple[Network, Counting]:
    counting = Counting(network())
    split = SplitModel(counting, example=torch.rand(2, 3, 16, 16))
    counting.seen = 0
    return Network(split, preprocessing), counting


def known(count: int = 50, seed: int = 0) -> ArraySet:
    images, labels = pictures(count, seed)
    return ArraySet(images, "x", labels)


def write(folder: Path, count: int) -> None:
    folder.mkdir()
    for place, array in enumerate(pictures(count, 0)[0]):
        Image.fromarray(array).save(folder / f"{place:03}.png")


def test_gives_what_the_network_gives_and_runs_once(tmp_path: Path) -> None:
    net, counting = made()
    store, data = FeatureStore(tmp_path), known()
    done = extract(net, data, store, batch_size=8)
    assert (done.ran, done.cached, counting.seen) == (50, 0, 50)
    acts = store.load(done.key)
    expected = net.split.split(SETTING.normalize(data.images))
    assert torch.allclose(acts.features, expected.features, atol=1e-6)
    assert torch.allclose(acts.logits, expected.logits, atol=1e-5)
    assert acts.labels is not None
    assert acts.labels.tolist() == data.labels.tolist()  # type: ignore[union-attr]
    counting.seen = 0
    again = extract(net, data, store, batch_size=8)
    assert (again.key, again.ran, again.cached, counting.seen) == (done.key, 0, 50, 0)


class Lighter:
    """Changes images along no gradient at all, which is allowed too."""

    def __init__(self, step: float) -> None:
        self.step = step

    def perturb(self, _: object, images: Tensor) -> Tensor:
        return images + self.step

    def edit_key(self) -> str:
        return f"lighter {self.step}"


def test_changed_images_have_a_place_of_their_own(tmp_path: Path) -> None:
    net, _ = made()
    store, data = FeatureStore(tmp_path), known()
    plain = extract(net, data, store)
    found = {step: extract(net, data, store, edit_with=Lighter(step)) for step in (0.1, 0.2)}
    assert len({plain.key, *(done.key for done in found.values())}) == 3
    assert [extract(net, data, store, edit_with=Lighter(step)).ran for step in (0.1, 0.2)] == [0, 0]
    for step, done in found.items():
        acts = store.load(done.key)
        expected = net.split.split(SETTING.normalize(data.images) + step)
        assert torch.allclose(acts.logits, expected.logits, atol=1e-5)
        assert acts.labels is not None
        assert acts.labels.tolist() == data.labels.tolist()  # type: ignore[union-attr]


def test_images_that_the_change_spoils_are_told(tmp_path: Path) -> None:
    net, _ = made()
    store, data = FeatureStore(tmp_path), known()
    ways = (None, Lighter(float("nan")))
    plain, broken = (stored("x", "far", 50, store, extract(net, data, store, edit_with=way).key) for way in ways)
    with pytest.raises(DataError, match="x: the network gives NaN or Inf for some of its images once changed"):
        beside(plain, broken).load()


def test_a_changed_image_costs_its_own_shard(tmp_path: Path) -> None:
    net, counting = made()
    write(tmp_path / "images", 50)
    store = FeatureStore(tmp_path / "store")
    before = extract(net, folder_set(tmp_path / "images"), store)
    Image.fromarray(pictures(1, 5)[0][0]).save(tmp_path / "images" / "025.png")
    os.utime(tmp_path / "images" / "025.png", ns=(5, 5))
    counting.seen = 0
    after = extract(net, folder_set(tmp_path / "images"), store)
    assert counting.seen == 20
    assert after.key != before.key
    old, new = store.load(before.key).features, store.load(after.key).features
    assert ((old != new).any(dim=1).nonzero().flatten()).tolist() == [25]


def test_weights_preprocessing_labels_and_precision_each_count(tmp_path: Path) -> None:
    net, counting = made()
    store, data = FeatureStore(tmp_path), known()
    keys = {extract(net, data, store).key}
    relabelled = ArraySet(data.images, "x", (data.labels + 1) % 4)  # type: ignore[operator]
    keys.add(extract(net, relabelled, store).key)
    keys.add(extract(made(Preprocessing())[0], data, store).key)
    with torch.no_grad():
        next(counting.model.parameters()).add_(1e-6)
    keys.add(extract(Network(net.split, SETTING), data, store).key)
    assert len(keys) == 4
    assert (
        Network(net.split, SETTING, ChosenPrecision("bf16", "bf16", "")).identity
        != Network(net.split, SETTING).identity
    )


def test_the_code_of_a_network_counts(tmp_path: Path) -> None:
    split = made()[0].split
    file = tmp_path / "net.py"
    file.write_text("a = 1")
    first = Network(split, SETTING, spec=f"{file}:make").identity
    file.write_text("a = 2")
    assert Network(split, SETTING, spec=f"{file}:make").identity != first


def test_bad_images_are_left_out_and_named(tmp_path: Path) -> None:
    net, _ = made()
    write(tmp_path / "images", 45)
    for place in (0, 3, *range(20, 40)):  # a whole shard among them
        (tmp_path / "images" / f"{place:03}.png").write_bytes(b"junk")
    store = FeatureStore(tmp_path / "store")
    done = extract(net, folder_set(tmp_path / "images"), store, batch_size=4)
    shards = list(store.shards(done.key))
    assert [place for part in shards for place, _ in part.skipped] == [0, 3, *range(20, 40)]
    assert torch.cat([part.index for part in shards]).tolist() == [1, 2, *range(4, 20), *range(40, 45)]
    good = store.load(done.key).features
    whole = ArraySet(pictures(45, 0)[0], "x")
    reference = store.load(extract(net, whole, store).key).features
    assert torch.allclose(good, reference[torch.cat([part.index for part in shards])], atol=1e-6)


def test_images_without_a_number_are_left_out(tmp_path: Path) -> None:
    class Hurt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = network()

        def forward(self, images: Tensor) -> Tensor:
            return self.model(images / (images.amax(dim=(1, 2, 3), keepdim=True) > -1.4))

    images, labels = pictures(10, 0)
    images[4] = 0
    split = SplitModel(Hurt(), layer="model.fc")
    store = FeatureStore(tmp_path)
    done = extract(Network(split, SETTING), ArraySet(images, "x", labels), store)
    [part] = store.shards(done.key)
    assert part.skipped == [(4, "the network gives NaN or Inf for it")]
    assert len(part.acts) == 9
    assert part.acts.labels is not None
    assert part.acts.labels.tolist() == np.delete(labels, 4).tolist()


def test_an_empty_set_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="at least one image"):
        extract(made()[0], ArraySet(pictures(3, 0)[0][:0], "x"), FeatureStore(tmp_path))


def test_damaged_shard_is_computed_again(tmp_path: Path) -> None:
    net, counting = made()
    store, data = FeatureStore(tmp_path), known()
    done = extract(net, data, store)
    before = store.load(done.key).features
    path = sorted(tmp_path.rglob("*.safetensors"))[0]
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    counting.seen = 0
    with pytest.warns(IdnessWarning, match="damaged"):
        again = extract(net, data, store)
    assert counting.seen in (10, 20)
    assert torch.equal(store.load(again.key).features, before)


def extract_slowly(place: Path) -> None:
    extraction.SHARD = 20
    net, counting = made()
    forward = counting.forward

    def slow(images: Tensor) -> Tensor:
        time.sleep(0.15)
        return forward(images)

    counting.forward = slow  # type: ignore[method-assign]
    extract(net, known(200), FeatureStore(place), batch_size=10)


def test_killed_and_resumed_equals_never_killed(tmp_path: Path) -> None:
    process = started(extract_slowly, tmp_path / "killed")
    while len(list((tmp_path / "killed").rglob("*.safetensors"))) < 3:
        assert process.is_alive()
        time.sleep(0.02)
    process.kill()
    assert exit_code(process) == -signal.SIGKILL
    kept = len(list((tmp_path / "killed").rglob("*.safetensors")))
    net, counting = made()
    resumed = extract(net, known(200), FeatureStore(tmp_path / "killed"), batch_size=10)
    assert resumed.cached == 20 * kept
    assert counting.seen == 200 - 20 * kept
    whole = extract(net, known(200), FeatureStore(tmp_path / "whole"), batch_size=10)
    assert resumed.key == whole.key
    names = [sorted(path.name for path in (tmp_path / which).rglob("*.safetensors")) for which in ("killed", "whole")]
    assert names[0] == names[1]  # the names hold the hashes of all bytes


def test_progress_counts_every_image(tmp_path: Path) -> None:
    class Counting(Listener):
        steps: list[int] = []

        def advance(self, steps: int) -> None:
            self.steps.append(steps)

    extract(made()[0], known(50), FeatureStore(tmp_path), batch_size=8, listener=Counting())
    assert sum(Counting.steps) == 50
    assert np.all(np.array(Counting.steps) >= 0)


@pytest.mark.fault(
    "a clock that goes back: images and files of the store that are from the future, images that change into the past",
    does="what is whole is used again, what has changed is computed again, and what a running process writes stays",
)
def test_a_clock_that_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "images", 25)
    net, counting = made()
    store = FeatureStore(tmp_path / "store")
    first = extract(net, folder_set(tmp_path / "images"), store, batch_size=8)
    shard = store.root / store.refs(first.key)[-1].path  # of images that stay as they are
    other, own = shard.with_name(".x.00000000-1.a.part"), shard.with_name(f".x.{_host()}-{os.getpid()}.a.part")
    for part in (other, own):
        part.write_bytes(b"half")
    monkeypatch.setattr(time, "time", lambda: 1_000.0)  # long before all of it was written
    assert extract(net, folder_set(tmp_path / "images"), store, batch_size=8) == replace(first, ran=0, cached=25)
    changed = tmp_path / "images" / "003.png"
    Image.fromarray(pictures(1, 9)[0][0]).save(changed)
    os.utime(changed, (1.0, 1.0))  # written now, by that clock, and so older than what the store holds of it
    counting.seen = 0
    assert extract(net, folder_set(tmp_path / "images"), store, batch_size=8).ran == counting.seen == 20
    assert {part.read_bytes() for part in (other, own)} == {b"half"}  # of another machine, or of a process that runs
    monkeypatch.undo()
    monkeypatch.setattr(extraction, "SHARD", 20)
    os.utime(other, (1.0, 1.0))
    Image.fromarray(pictures(1, 8)[0][0]).save(changed)
    extract(net, folder_set(tmp_path / "images"), store, batch_size=8)
    assert not other.exists()  # a day has passed: whoever wrote it is gone


def laid_out(place: Path, kind: str, seed: int) -> Path:
    """Write 25 images uncompressed, so that other images take as many bytes."""
    found = {f"{number:03}.bmp": array for number, array in enumerate(pictures(25, seed)[0])}
    files = {name: io.BytesIO() for name in found}
    for name, array in found.items():
        Image.fromarray(array).save(files[name], "BMP")
    place.mkdir(parents=True, exist_ok=True)
    if kind == "npz":
        np.savez(place / "x.npz", images=np.stack(list(found.values())))
        return place / "x.npz"
    if kind == "parquet":
        table = pyarrow.table({"image": [file.getvalue() for file in files.values()]})
        pyarrow.parquet.write_table(table, place / "x.parquet", compression=None, use_dictionary=False)
        return place / "x.parquet"
    if kind == "tar":
        with tarfile.open(place / "x.tar", "w") as archive:
            for name, file in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(file.getvalue())
                archive.addfile(member, io.BytesIO(file.getvalue()))
        return place / "x.tar"
    for name, file in files.items():
        (place / name).write_bytes(file.getvalue())
    (place / "list.txt").write_text("\n".join(files))
    return place / "list.txt" if kind == "list" else place


@pytest.mark.parametrize("by_url", [False, True])
@pytest.mark.parametrize("kind", ["folder", "list", "npz", "parquet", "tar"])
def test_replaced_images_are_noticed_and_unchanged_ones_are_not_read_again(
    kind: str, by_url: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (kind, by_url) == ("npz", True):
        pytest.skip("an .npz file is read on this machine only")
    monkeypatch.setattr(sets, "SETTLED", -1.0)  # files that were written just now count as unchanged
    store, (net, _) = FeatureStore(tmp_path / "store"), made()

    def ran(place: Path) -> int:
        images = open_set(place.as_uri() if by_url else str(place), place if place.is_dir() else place.parent)
        assert isinstance(images, ImageSet)
        return extract(net, images, store, batch_size=8).ran

    place = laid_out(tmp_path / "images", kind, 0)
    assert ran(place) == 25
    times = {path: path.stat() for path in (tmp_path / "images").iterdir()}
    if not by_url:
        with monkeypatch.context() as patch:
            for cls in (ImageSet, NpzSet):
                patch.setattr(cls, "stamp", None)  # nothing is read
            assert ran(place) == 0
    laid_out(tmp_path / "images", kind, 1)
    for path, before in times.items():
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert path.stat().st_size == before.st_size
    assert ran(place) == 25
    assert ran(laid_out(tmp_path / "copied" / "images", kind, 0)) == 0  # the content counts, not the place


@pytest.mark.parametrize("most", [7, 25, 100])
def test_what_is_kept_serves_as_if_a_part_had_been_run(most: int, tmp_path: Path) -> None:
    net, counting = made()
    images, store = known(25), FeatureStore(tmp_path)
    source = stored("id_test", "id_test", 25, store, extract(net, images, store).key)
    counting.seen = 0
    kept = sampled(source, images, most)
    assert counting.seen == 0
    ran = collect(net, images, limit=most)
    assert torch.allclose(kept.acts.features, ran.acts.features, atol=1e-5)
    assert torch.equal(kept.acts.labels, ran.acts.labels)  # type: ignore[arg-type]
    assert [kept.images.item(int(place)) for place in kept.index] == [
        ran.images.item(int(place)) for place in ran.index
    ]  # type: ignore[union-attr]

from __future__ import annotations

import io
import os
import signal
import tarfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from idness.activations import extract as extraction
from idness.activations.extract import collect, extract, run_images
from idness.activations.store import FeatureStore
from idness.core.errors import DataError
from idness.core.progress import Progress
from idness.data import ArraySet, FileSet, ImageSet, Preprocessing, folder_set, open_set, urls
from idness.data.activations import ActivationsSet
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


def test_activations_are_the_networks_and_it_runs_once(tmp_path: Path) -> None:
    net, counting = made()
    store, data = FeatureStore(tmp_path), known()
    key, ran = extract(net, data, store, batch_size=8)
    assert (ran, counting.seen) == (50, 50)
    acts = store.load(key)
    expected = net.split.split(SETTING.normalize(data.items))
    assert torch.allclose(acts.features, expected.features, atol=1e-6)
    assert torch.allclose(acts.logits, expected.logits, atol=1e-5)
    assert acts.labels is not None
    assert acts.labels.tolist() == data.labels.tolist()  # type: ignore[union-attr]
    counting.seen = 0
    assert (*extract(net, data, store, batch_size=8), counting.seen) == (key, 0, 0)


class Lighter:
    """An edit that needs no gradient."""

    def __init__(self, step: float) -> None:
        self.step = step

    def perturb(self, _: object, images: Tensor) -> Tensor:
        return images + self.step

    def edit_key(self) -> str:
        return f"lighter {self.step}"


def test_edited_images_have_keys_of_their_own(tmp_path: Path) -> None:
    net, _ = made()
    store, data = FeatureStore(tmp_path), known()
    plain, _ = extract(net, data, store)
    found = {step: extract(net, data, store, edit_with=Lighter(step))[0] for step in (0.1, 0.2)}
    assert len({plain, *found.values()}) == 3
    assert [extract(net, data, store, edit_with=Lighter(step))[1] for step in (0.1, 0.2)] == [0, 0]
    for step, key in found.items():
        acts = store.load(key)
        expected = net.split.split(SETTING.normalize(data.items) + step)
        assert torch.allclose(acts.logits, expected.logits, atol=1e-5)
        assert acts.labels is not None
        assert acts.labels.tolist() == data.labels.tolist()  # type: ignore[union-attr]


def test_a_changed_image_invalidates_its_own_shard_only(tmp_path: Path) -> None:
    net, counting = made()
    write(tmp_path / "images", 50)
    store = FeatureStore(tmp_path / "store")
    before, _ = extract(net, folder_set(tmp_path / "images"), store)
    Image.fromarray(pictures(1, 5)[0][0]).save(tmp_path / "images" / "025.png")
    os.utime(tmp_path / "images" / "025.png", ns=(5, 5))
    counting.seen = 0
    after, _ = extract(net, folder_set(tmp_path / "images"), store)
    assert counting.seen == 20
    assert after != before
    old, new = store.load(before).features, store.load(after).features
    assert ((old != new).any(dim=1).nonzero().flatten()).tolist() == [25]


def test_weights_preprocessing_labels_and_precision_each_count(tmp_path: Path) -> None:
    net, counting = made()
    store, data = FeatureStore(tmp_path), known()
    keys = {extract(net, data, store)[0]}
    relabelled = ArraySet(data.items, "x", (data.labels + 1) % 4)  # type: ignore[operator]
    keys.add(extract(net, relabelled, store)[0])
    keys.add(extract(made(Preprocessing())[0], data, store)[0])
    with torch.no_grad():
        next(counting.model.parameters()).add_(1e-6)
    keys.add(extract(Network(net.split, SETTING), data, store)[0])
    assert len(keys) == 4
    half = Network(net.split, SETTING, ChosenPrecision("bf16", "bf16", ""))
    assert half.identity != Network(net.split, SETTING).identity
    file, found = tmp_path / "net.py", set[str]()
    for code in ("a = 1", "a = 2"):
        file.write_text(code)
        found.add(Network(net.split, SETTING, spec=f"{file}:make").identity)
    assert len(found) == 2


def test_unreadable_images_are_skipped_and_named(tmp_path: Path) -> None:
    net, _ = made()
    write(tmp_path / "images", 45)
    for place in (0, 3, *range(20, 40)):  # a whole shard among them
        (tmp_path / "images" / f"{place:03}.png").write_bytes(b"junk")
    store = FeatureStore(tmp_path / "store")
    data, labels = folder_set(tmp_path / "images"), np.arange(45) % 4
    key, _ = extract(net, FileSet(data.root, data.items, "x", labels), store, batch_size=4)
    shards = list(store.shards(key))
    assert [place for part in shards for place, _ in part.skipped] == [0, 3, *range(20, 40)]
    index = torch.cat([part.index for part in shards])
    assert index.tolist() == [1, 2, *range(4, 20), *range(40, 45)]
    assert torch.cat([part.labels for part in shards]).tolist() == labels[index].tolist()
    good = store.load(key).features
    whole = ArraySet(pictures(45, 0)[0], "x")
    reference = store.load(extract(net, whole, store)[0]).features
    assert torch.allclose(good, reference[index], atol=1e-6)


def test_images_with_nan_activations_are_skipped(tmp_path: Path) -> None:
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
    [part] = store.shards(extract(Network(split, SETTING), ArraySet(images, "x", labels), store)[0])
    assert part.skipped == [(4, "the network returns NaN or Inf for it")]
    assert len(part) == 9
    assert part.labels is not None
    assert part.labels.tolist() == np.delete(labels, 4).tolist()
    with pytest.raises(DataError, match="at least one image"):
        extract(made()[0], ArraySet(images[:0], "x"), store)


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
    resumed, ran = extract(net, known(200), FeatureStore(tmp_path / "killed"), batch_size=10)
    assert ran == counting.seen == 200 - 20 * kept
    whole, _ = extract(net, known(200), FeatureStore(tmp_path / "whole"), batch_size=10)
    assert resumed == whole
    names = [sorted(path.name for path in (tmp_path / which).rglob("*.safetensors")) for which in ("killed", "whole")]
    assert names[0] == names[1]  # the names hold the hashes of all bytes


def laid_out(place: Path, kind: str, seed: int) -> Path:
    """Write 25 images uncompressed, so that other images take as many bytes."""
    files = {f"{number:03}.bmp": io.BytesIO() for number in range(25)}
    for file, array in zip(files.values(), pictures(25, seed)[0], strict=True):
        Image.fromarray(array).save(file, "BMP")
    place.mkdir(parents=True, exist_ok=True)
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
@pytest.mark.parametrize("kind", ["folder", "list", "parquet", "tar"])
def test_replaced_images_are_noticed_and_unchanged_ones_are_not_read_again(
    kind: str, by_url: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(urls, "SETTLED", -1.0)  # files that were written just now count as unchanged
    store, (net, _) = FeatureStore(tmp_path / "store"), made()

    def ran(place: Path) -> int:
        images = open_set(place.as_uri() if by_url else str(place), place if place.is_dir() else place.parent)
        assert isinstance(images, ImageSet)
        return extract(net, images, store, batch_size=8)[1]

    place = laid_out(tmp_path / "images", kind, 0)
    assert ran(place) == 25
    times = {path: path.stat() for path in (tmp_path / "images").iterdir()}
    if not by_url:
        with monkeypatch.context() as patch:
            for cls in (ImageSet, FileSet):
                patch.setattr(cls, "digest", None)  # nothing is read
            assert ran(place) == 0
    laid_out(tmp_path / "images", kind, 1)
    for path, before in times.items():
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert path.stat().st_size == before.st_size
    assert ran(place) == 25
    assert ran(laid_out(tmp_path / "copied" / "images", kind, 0)) == 0  # the content counts, not the place


@pytest.mark.parametrize("step", [1, 4])
def test_stored_activations_are_those_of_a_run(step: int, tmp_path: Path) -> None:
    net, counting = made()
    images, store = known(25), FeatureStore(tmp_path)
    kept = ActivationsSet("id_test", 25, partial(store.shards, extract(net, images, store)[0]), images)
    counting.seen = 0
    acts = kept.load(step=step)
    assert counting.seen == 0
    ran = collect(net, images).acts[::step]
    assert torch.allclose(acts.features, ran.features, atol=1e-5)
    for name in ("labels", "index", "hashes"):
        assert torch.equal(getattr(acts, name), getattr(ran, name))
    assert kept.hashes is not None
    assert len(kept.hashes) == 25  # of all images, whatever was loaded


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for index, image in enumerate(pictures(6, 0)[0]):
        Image.fromarray(image).save(tmp_path / f"{index}.png")
    return tmp_path


def test_evenly_picked_with_places_and_without_what_cannot_be_read(folder: Path) -> None:
    net, _ = made()
    (folder / "3.png").write_bytes(b"junk")
    seen = Mock(spec=Progress)
    whole = collect(net, open_set(str(folder)), progress=seen)
    assert whole.acts.index is not None
    assert whole.acts.index.tolist() == [0, 1, 2, 4, 5]
    assert [place for place, _ in whole.acts.skipped] == [3]
    seen.phase.assert_called_once_with(folder.name, 6)
    assert sum(call.args[0] for call in seen.advance.call_args_list) == 6
    assert len(collect(net, open_set(str(folder)), limit=3).acts) == 3
    for path in folder.iterdir():
        path.write_bytes(b"junk")
    with pytest.raises(DataError, match="all of it: none of its 6 images"):
        collect(net, open_set(str(folder)), name="all of it")


def test_repeated_images_are_left_out_on_request(folder: Path) -> None:
    net, _ = made()
    Image.open(folder / "1.png").save(folder / "7.bmp")  # the same pixels in another format
    assert len(collect(net, open_set(str(folder))).acts) == 7
    distinct = collect(net, open_set(str(folder)), distinct=True).acts
    assert distinct.index is not None
    assert distinct.index.tolist() == [0, 1, 2, 3, 4, 5]


def test_input_can_be_edited_by_the_place_of_its_batch() -> None:
    net, _ = made()
    images = ArraySet(pictures(5, 0)[0], "x")
    starts = []

    def dark(batch: torch.Tensor, start: int) -> torch.Tensor:
        starts.append((start, len(batch)))
        return batch * 0

    parts = [acts for _, acts in run_images(net, images, batch_size=3, edit=dark)]
    assert starts == [(0, 3), (3, 2)]
    assert torch.equal(parts[0].features[0], parts[1].features[1])


def test_the_chosen_precision_is_used() -> None:
    net, _ = made()
    half = replace(net, precision=replace(net.precision, used="bf16"))
    fine, coarse = (collect(each, known(5)).acts.logits for each in (net, half))
    assert not torch.equal(fine, coarse)
    assert torch.allclose(fine, coarse, rtol=0.05, atol=0.1)

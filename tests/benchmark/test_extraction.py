"""`idness extract` in one process: a store that a benchmark takes for its own cache."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from idness.activations.extract import extract
from idness.activations.store import FeatureStore
from idness.benchmark.runner import run
from idness.benchmark.settings import Settings
from idness.core.errors import IdnessWarning
from idness.data import folder_set
from idness.networks.engines import driver
from idness.networks.engines.driver import Driver
from idness.networks.split import SplitModel
from tests.activations.test_extract import made, write
from tests.cli.running import idness
from tests.pictures import network, world


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return world(tmp_path)


def words(place: Path, *more: object) -> tuple[object, ...]:
    return (f"{place.parent}/net.py:make", *more, "--weights", place.parent / "weights.safetensors")


def benched(place: Path, store: Path, **options: object) -> dict[str, float]:
    model = f"{place.parent}/net.py:make"
    settings = Settings(weights=place.parent / "weights.safetensors", cache=store, methods=["ebo"], **options)  # type: ignore[arg-type]
    return run(place, model, settings).time


def test_a_benchmark_takes_the_store_for_its_own_cache(place: Path, tmp_path: Path) -> None:
    done = idness("extract", *words(place, place, "-o", tmp_path / "store"))
    assert done.returncode == 0, done.stderr
    assert "id_test: " in done.stdout
    assert f"wrote {tmp_path / 'store'}" in done.stderr
    time = benched(place, tmp_path / "store")
    assert time["images"] == 0
    assert time["cached"] > 0


def test_single_sets_are_those_of_the_benchmark_too(place: Path, tmp_path: Path) -> None:
    sets = [place.parent / f"{name}.npz" for name in ("train", "val", "test", "uval", "near", "far")]
    classes, how = (
        ("--classes", "red,green,blue,yellow"),
        ("--size", 16, "--mean", "0.5,0.5,0.5", "--std", "0.25,0.25,0.25"),
    )
    # The benchmark's preprocessing resizes nothing.
    text = place.read_text().replace("[preprocessing]", "[preprocessing]\nresize = [16, 16]")
    place.write_text(text)
    done = idness("extract", *words(place, *sets, "-o", tmp_path / "store"), *classes, *how, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [entry["name"] for entry in found] == [path.name for path in sets]
    assert all(entry["ran"] == entry["images"] and entry["unread"] == 0 for entry in found)
    assert benched(place, tmp_path / "store")["images"] == 0


def test_what_is_there_is_refused_or_gone_on_with(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    first = idness("extract", *words(place, place.parent / "test.npz", "-o", out))
    assert first.returncode == 0, first.stderr
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")}
    refused = idness("extract", *words(place, place.parent / "test.npz", "-o", out))
    assert (refused.returncode, refused.stderr) == (
        2, f"idness: {out} exists; --resume continues it, or choose another folder\n",
    )  # fmt: skip
    again = idness("extract", *words(place, place.parent / "test.npz", "-o", out, "--resume"))
    assert ", 0 run, " in again.stdout
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")} == before


def test_images_that_cannot_be_read_are_counted(place: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name in ("a", "b", "c"):
        Image.fromarray(np.full((16, 16, 3), 90, np.uint8)).save(folder / f"{name}.png")
    (folder / "b.png").write_bytes(b"junk")
    done = idness("extract", *words(place, folder, "-o", tmp_path / "store"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        "pictures: 3 images, 3 run, 0 taken from the store, 1 left out; the first, b.png: b.png: must be"
    )


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["nosuch", "-o", "store"], "SETS nosuch does not exist"),
        (["a-file/x", "-o", "a-file/store"], "cannot write a-file/store"),
        (["cifar6", "-o", "store", "--size", "32"], "--size, --mean and --std"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_written(more: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "a-file").touch()
    done = idness("extract", "cifar6:base", *more, cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["a-file"]


def test_a_store_is_read_by_the_engine_that_filled_it_wherever_that_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = torch.randn(20, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    split = SplitModel(network(), example=images[:2])
    assert Driver("onnxruntime", 100, tmp_path).settle(split, images).used == "onnxruntime"
    monkeypatch.setattr(driver.platform, "node", lambda: "a laptop")  # type: ignore[attr-defined]
    for count in (100, 1_000_000):
        found = Driver("auto", count, tmp_path).decide(split, images)
        assert found.used == "onnxruntime"
        assert found.images == count
    assert Driver("eager", 100, tmp_path).decide(split, images).used == "eager"  # what is asked for is taken
    monkeypatch.setattr(driver, "version", lambda name: "0.1")
    with pytest.warns(
        IdnessWarning, match=r"made by onnxruntime .+, here is 0\.1, so they are not used; install onnxruntime=="
    ):
        assert Driver("auto", 100, tmp_path).decide(split, images).used == "eager"


def test_an_engine_that_is_adopted_gives_the_same_bits(tmp_path: Path) -> None:
    images = torch.randn(40, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    for count in (100, 500):  # the network as it is, and folded
        split, other = (SplitModel(network(), example=images[:2]) for _ in range(2))
        settled = Driver("auto", count, tmp_path / str(count))
        chosen = settled.settle(split, images[:16])
        adopted = Driver.adopting(chosen, other, images[:16])
        assert torch.equal(settled.run(split, images)[0], adopted.run(other, images)[0])
        assert type(settled._engine) is type(adopted._engine)
        assert chosen.form == ("as it is" if count == 100 else "folded")


def test_an_engine_that_is_adopted_is_made_as_it_was_settled_and_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = torch.randn(20, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    ran: list[int] = []
    look = SplitModel.look
    monkeypatch.setattr(SplitModel, "look", lambda self, few: ran.append(len(few)) or look(self, few))
    for asked, form in (("eager", "folded"), ("onnxruntime", "traced")):
        split = SplitModel(network(), example=images[:2])
        settled = Driver(asked, 100, tmp_path / asked)
        chosen = settled.settle(split, images)
        assert chosen.form == form
        assert settled.settle(split, images[4:]) is chosen  # it is made already
        for as_found in (form, "as it is", "channels last")[: 1 if asked == "onnxruntime" else 3]:
            ran.clear()
            adopted = Driver.adopting(replace(chosen, form=as_found), split, images)
            assert adopted._engine is not None
            assert adopted._engine.form == as_found
            assert sum(ran) <= 2  # which tracing takes
            assert torch.allclose(adopted.run(split, images)[0], settled.run(split, images)[0], rtol=1e-3, atol=1e-4)


class Net(nn.Module):
    """Adds what its convolution gives to what BatchNorm makes of it, if asked to, which neither weights nor names tell."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 4)
        nn.init.uniform_(self.norm.weight, 1, 2)
        self.added = False

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found = self.conv(images)
        found = self.norm(found) + (found if self.added else 0)
        features: torch.Tensor = self.fc(found.relu().mean(dim=(2, 3)))
        return features


def test_a_choice_that_is_remembered_is_tried_again(tmp_path: Path) -> None:
    images = torch.randn(20, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    model = Net().eval()
    split = SplitModel(model, example=images[:2])
    assert Driver("auto", 1_000, tmp_path).settle(split, images).form == "folded"
    model.added = True
    again = Driver("auto", 1_000, tmp_path)
    assert again.settle(split, images).form == "channels last"
    assert torch.allclose(again.run(split, images)[0], Driver("auto", 1).run(split, images)[0], rtol=1e-4)


def test_skipped_images_are_told_without_reading_activations(tmp_path: Path) -> None:
    write(tmp_path / "images", 5)
    (tmp_path / "images" / "003.png").write_bytes(b"junk")
    store = FeatureStore(tmp_path / "store")
    done = extract(made()[0], folder_set(tmp_path / "images"), store)
    [ref] = store.refs(done.key)
    assert store.skipped(ref) == store.read(ref).skipped
    assert [place for place, _ in store.skipped(ref)] == [3]

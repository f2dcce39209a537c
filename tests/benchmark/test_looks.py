from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from idness.benchmark import Settings, looks, run
from idness.benchmark.results import Report
from idness.core.types import Activations
from idness.data import Preprocessing
from idness.detectors.registry import build, rows
from idness.metrics import all_metrics
from idness.networks.split import SplitModel
from tests.benchmark.test_results import valid
from tests.pictures import network, pictures, world

TWICE = sorted(set(rows(costly=True)) - set(rows()))
HOW = Preprocessing(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))


def go(path: Path, *methods: str, **settings: object) -> Report:
    options = {"weights": path.parent / "weights.safetensors", "cache": path.parent / "cache"} | settings
    return run(path, f"{path.parent}/net.py:make", Settings(methods=methods, **options))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def report(place: Path) -> Report:
    return go(place, "ebo", *TWICE)


def seen(row: str, options: dict[str, object], seed: int, known: bool = True) -> Activations:
    """What a fresh copy of the network makes of a set, and of its images as a row changes them."""
    images = HOW.normalize(pictures(60, seed, known)[0])
    split = SplitModel(network(), example=images[:2])
    return split.split(images, edit_with=build(row, **options).input_edit)


def test_rows_of_two_passes_run_where_they_are_named(report: Report) -> None:
    assert set(report.methods) == {"ebo", *TWICE}
    assert not report.failed
    assert valid(json.loads(report.to_json()), Report.schema())


@pytest.mark.parametrize("row", TWICE)
def test_their_numbers_are_those_of_a_slow_rederivation(row: str, report: Report) -> None:
    found = report.methods[row]
    head = SplitModel(network(), example=torch.rand(2, 3, 16, 16)).head
    detector = build(row, **found.options)
    detector.fit(head, seen(row, found.options, 0), val=seen(row, found.options, 1))
    ids, oods = (detector.score(seen(row, found.options, seed, known)) for seed, known in ((2, True), (5, False)))
    np.testing.assert_allclose(report.scores.of(row, "id_test"), ids.numpy(), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(report.scores.of(row, "grey"), oods.numpy(), rtol=1e-3, atol=1e-3)
    assert found.sets["grey"].auroc == pytest.approx(all_metrics(ids, oods)["auroc"], abs=0.002)


def test_a_second_run_finds_the_changed_images_in_the_store_and_other_options_do_not(
    report: Report, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = 5  # all but the training images, which no row of two passes learns from where there are validation images
    other = go(place, "odin(eps=0.3)")
    assert (other.time["images"], other.time["cached"]) == (60 * sets, 360)
    row = "odin(eps=0.3)"
    assert not np.allclose(other.scores.of(row, "grey"), report.scores.of("odin", "grey"), rtol=1e-4)

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("the network ran")

    monkeypatch.setattr(SplitModel, "split", forbidden)
    again = go(place, "ebo", *TWICE)
    assert again.time["images"] == 0
    for name in TWICE:
        assert again.methods[name].groups == report.methods[name].groups
    assert again.sets["id_test"].sha256 == report.sets["id_test"].sha256


def test_activations_in_place_of_images_cannot_be_changed(place: Path, tmp_path: Path) -> None:
    for seed, name in enumerate(("train", "val", "test", "uval", "near", "far")):
        acts = seen("ebo", {}, seed, known=seed < 3)
        save_file({"features": acts.features, "logits": acts.logits}, tmp_path / f"{name}.safetensors")
    (tmp_path / "acts.toml").write_text(place.read_text().replace(".npz", ".safetensors"))
    model = f"{place.parent}/net.py:make"
    settings = {"weights": place.parent / "weights.safetensors", "cache": tmp_path / "cache"}
    found = run(tmp_path / "acts.toml", model, Settings(methods=["ebo", "odin"], **settings))  # type: ignore[arg-type]
    assert set(found.methods) == {"ebo"}
    assert "the benchmark has activations in place of images" in found.failed["odin"]


def test_methods_learn_from_a_seeded_sample_of_large_training_sets(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = go(place, "knn(k=3)", engine="eager")
    monkeypatch.setattr(looks, "TRAIN_SAMPLE", 20)
    first, again = (go(place, "knn(k=3)", engine="eager") for _ in range(2))
    assert first.sets["id_train"].images == whole.sets["id_train"].images
    scores = [np.asarray(report.scores.of("knn(k=3)", "id_test")) for report in (whole, first, again)]
    np.testing.assert_array_equal(scores[1], scores[2])
    assert not np.allclose(scores[0], scores[1])
    bank = seen("ebo", {}, 0)
    order = torch.randperm(len(bank), generator=torch.Generator().manual_seed(0))[:20]
    head = SplitModel(network(), example=torch.rand(2, 3, 16, 16)).head
    expected = build("knn", k=3).fit(head, bank[order]).score(seen("ebo", {}, 2))
    np.testing.assert_allclose(scores[1], expected.numpy(), rtol=1e-4, atol=1e-4)

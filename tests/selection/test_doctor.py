from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from idness.activations.extract import collect
from idness.benchmark import Benchmark, Settings
from idness.benchmark import run as bench
from idness.core.errors import ModelError
from idness.data import ArraySet, embedded, open_set
from idness.guard import calibrate
from idness.networks.open import ModelOptions, open_network
from idness.selection import recommend
from idness.selection.pseudo_ood import KINDS, pseudo_activations
from idness.selection.recommend import diagnose, recommend_for, scaling
from tests.guard.prepared import prepared

NETWORK = """
from torch import nn

def make():
    body = (nn.Conv2d(3, 160, 5, stride=4), nn.BatchNorm2d(160), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    net = nn.Sequential(*body, nn.Linear(160, 6))
    {said}
    return net
"""
SAID = 'net.preprocessing = {"mean": [0.5, 0.5, 0.5], "std": [0.2, 0.2, 0.2], "resize": [32, 32]}'


def write(folder: Path, *, said: str = "") -> str:
    """Write a network, and random weights for it that are sure of their answers."""
    (folder / "net.py").write_text(NETWORK.format(said=said))
    torch.manual_seed(0)
    net = runpy.run_path(str(folder / "net.py"))["make"]()
    net[5].weight.data *= 20
    save_file(net.state_dict(), folder / "w.safetensors")
    return f"{folder / 'net.py'}:make"


def test_diagnose_examines_folders(tmp_path: Path) -> None:
    spec = write(tmp_path, said=SAID)
    options = ModelOptions(spec, tmp_path / "w.safetensors")
    measured = diagnose(options, "embedded:id_val", "embedded:mnist", limit=120)
    names = {finding.name: finding for finding in measured.findings}
    assert names["features"].good is True
    assert "your OOD images" in names["scaling"].text
    assert "labelled images, chance level for 6 classes" in names["labels"].text  # random weights
    assert measured.why.startswith(f"Recommended: {measured.method} ")
    alone = diagnose(options, "embedded:id_val", limit=120)
    assert "pseudo-OOD images" in {finding.name: finding for finding in alone.findings}["scaling"].text


def test_without_weights_or_images_nothing_is_measured(tmp_path: Path) -> None:
    spec = write(tmp_path)
    with pytest.raises(ModelError, match=r"model\.preprocessing"):
        diagnose(ModelOptions(spec, tmp_path / "w.safetensors"), "embedded:id_val")
    found = diagnose(ModelOptions(spec, "none"), "embedded:id_val")
    assert (found.method, found.aurocs) == ("fuse", {})
    assert "Nothing was measured" in found.why


def test_scale_is_found_to_harm_the_embedded_network() -> None:
    found = diagnose("cifar6:base", limit=600)
    assert found.method == "fuse"
    scaling = next(finding for finding in found.findings if finding.name == "scaling")
    assert scaling.good is False
    assert scaling.text.startswith("SCALE harms on pseudo-OOD images")
    assert found.aurocs["fuse"] > found.aurocs["ebo"]


@pytest.mark.parametrize("outside", [0, 1, 2])
def test_doctor_calibrate_and_bench_agree_also_if_images_occur_twice(tmp_path: Path, outside: int) -> None:
    """The same images, of which every fourth occurs twice, and OOD images so many times, give the same recommendation everywhere."""
    known, other = embedded.load("id_val"), embedded.load("mnist")
    twice = np.sort(np.concatenate([np.arange(200), np.arange(0, 200, 4)]))
    np.savez(tmp_path / "ids.npz", images=known.images[twice], labels=known.labels[twice])
    np.savez(tmp_path / "rest.npz", images=known.images[200:], labels=known.labels[200:])
    np.savez(tmp_path / "ood.npz", images=other.images[:30].repeat(outside, axis=0))
    np.savez(tmp_path / "far.npz", images=other.images[60:120])
    ids, ood = str(tmp_path / "ids.npz"), str(tmp_path / "ood.npz") if outside else None
    for train in (None, "rest.npz"):
        fitted = None if train is None else str(tmp_path / train)
        found = diagnose("cifar6:base", ids, ood, train=fitted)
        guard, notes = prepared("cifar6:base", ids, ood=ood, train=fitted, gallery=False)
        assert guard.detector.label() == found.detector.label()
        assert any(note.startswith(f"auto: {found.why} {found.risk}".strip()) for note in notes)
        sets = {"val": "ids.npz", "test": "rest.npz"} | ({} if train is None else {"train": train})
        odd = {"odd": "ood.npz"} if outside else {}
        benchmark = Benchmark(name="b", title="b", id=sets, ood_val=odd, far={"far": "far.npz"}, base=tmp_path)
        report = bench(benchmark, "cifar6:base", Settings(methods=() if outside else ("ebo", "fuse")))
        assert (report.advised, report.advised_why) == (found.row, found.why)
        assert report.answer is not None
        assert report.answer.use == found.row or found.row in report.failed
        assert any(found.why.removeprefix("Recommended: ") in line for line in report.answer.evidence)
        assert found.row not in report.failed or train is None  # without training images bench cannot measure it
        if train:  # however the recommendation was found, it changes nothing else
            alone = bench(benchmark, "cifar6:base", Settings(methods=("fuse",)))
            assert np.array_equal(alone.scores.of("fuse", "far"), report.scores.of("fuse", "far"))


def test_large_sets_are_sampled_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recommend, "MOST", 50)
    network = open_network("cifar6:base")
    every = collect(network, open_set("embedded:id_val"))  # 500 images
    sampled = collect(network, open_set("embedded:id_val"), limit=100)
    part, order = recommend.learning_half(every)
    assert sorted(order.tolist()) == list(range(500))
    assert torch.equal(part.acts.logits, recommend.learning_half(sampled)[0].acts.logits)
    assert set(part.acts.index.tolist()) <= set(every.acts.index[order[:250]].tolist())  # the others calibrate


def test_images_that_chose_a_method_do_not_calibrate_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recommend, "chosen_row", lambda *_: "msp")  # which learns nothing
    guard = prepared("cifar6:base", "embedded:id_val", gallery=False).guard
    assert guard.detector.name == "msp"
    assert len(guard.calibration) == 250


def test_scale_is_warned_about_or_set_by_the_network_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    guard, notes = prepared("cifar6:base", "embedded:id_val", method="scale", gallery=False)
    assert guard.detector.label() == "scale(percentile=85)"
    assert any("caution: Scale: percentile 85 harms this network" in note for note in notes)
    guard, notes = prepared("cifar6:base", "embedded:id_val", method="scale(percentile=auto)", gallery=False)
    assert guard.detector.name == "ebo"
    assert any("no percentile improves on the energy score" in note for note in notes)
    monkeypatch.setattr(calibrate, "scaling", lambda *_, **__: {65.0: 0.2, 90.0: 0.7, 95.0: 0.1})
    guard, _ = prepared("cifar6:base", "embedded:id_val", method="scale(percentile=auto, readout=msp)", gallery=False)
    assert guard.detector.options() == {"readout": "msp", "percentile": 90.0}


def test_pseudo_ood_images_are_made_of_images_that_methods_do_not_learn_from() -> None:
    known = embedded.load("id_val")
    images = ArraySet(known.images[:60], "some", known.labels[:60], known.classes)
    network = open_network("cifar6:base", images=images)
    ids = collect(network, images)
    made = pseudo_activations(network, ids, every=2)
    assert set(made) == set(KINDS)
    assert {len(acts) for acts in made.values()} == {30}
    odd = collect(network, ArraySet(known.images[1:60:2], "odd"), edit=lambda x, _: x.rot90(2, (2, 3)))
    torch.testing.assert_close(made["turned"].logits, odd.acts.logits, rtol=1e-3, atol=1e-3)


def test_activations_alone_get_advice_without_a_measurement(tmp_path: Path) -> None:
    network = open_network("cifar6:base")
    acts = collect(network, open_set("embedded:id_val")).acts
    save_file({"features": acts.features, "logits": acts.logits}, tmp_path / "acts.safetensors")
    found = recommend_for(network, collect(network, open_set(str(tmp_path / "acts.safetensors"))))
    assert found.method == "fuse"
    assert "Nothing was measured" in found.why
    assert scaling(network, collect(network, open_set("embedded:id_val"), limit=100), ood=acts[:50])[85.0] is not None

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from colour_world import HOW, write_folder
from PIL import Image

from idness.core.errors import InputError, ModelError
from idness.data.open import open_images
from idness.data.sets import find_images
from idness.detectors.registry import rows
from idness.guard import Guard
from idness.guard.score import score_images
from idness.networks.open import ModelOptions
from tests.cli.running import idness
from tests.guard.prepared import prepared

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def network(net_spec: str, weights: Path) -> ModelOptions:
    return ModelOptions(net_spec, weights)


def test_calibrate_score_and_export(
    net_spec: str, weights: Path, id_folder: Path, ood_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = tmp_path / "guard"
    words = ("--weights", weights, "--data", id_folder, "--method", "scale", "-o", guard)
    done = idness("calibrate", net_spec, *words)
    assert done.returncode == 0, done.stderr
    assert {file.name.partition("-")[0] for file in guard.iterdir()} == {"guard.json", "tensors", "weights"}
    images = sorted((id_folder / "red").glob("*.png"))[:5]
    done = idness("score", guard, *images, ood_folder, "--json")
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert len(records) == 35
    assert sum(record["is_ood"] for record in records[5:]) > 20
    assert [record["class"] for record in records[:5]] == ["red"] * 5
    assert idness("score", guard, ood_folder, "--strict").returncode == 1
    exported = idness("export", guard, "-o", tmp_path / "model.onnx")
    assert exported.returncode == 0, exported.stderr
    assert (tmp_path / "model.onnx").stat().st_size > 10_000
    assert "model.onnx" in exported.stdout
    # Another user has to name the network's file once.
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    refused = idness("score", guard, images[0])
    assert refused.returncode == 2
    assert f"read it, then pass --model path/to/{Path(net_spec).name}" in refused.stderr
    assert idness("score", guard, images[0], "--model", net_spec).returncode == 0
    assert idness("score", guard, images[0]).returncode == 0


def test_detectors_never_learn_from_calibration_images(network: ModelOptions, id_folder: Path, tmp_path: Path) -> None:
    halved = prepared(network, id_folder, method="knn(k=1)").guard
    assert len(halved.calibration or ()) == 120
    assert len(halved.detector.state()["bank_"]) == 120
    # The nearest neighbour of an image that was learned from is itself, at distance 0.
    assert float((halved.calibration.scores if halved.calibration else torch.zeros(1)).max()) < -1e-7
    train = write_folder(tmp_path / "train", 20, first=7_000)
    apart = prepared(network, id_folder, method="knn(k=1)", train=train).guard
    assert len(apart.calibration or ()) == 240
    assert len(apart.detector.state()["bank_"]) == 80


@pytest.mark.parametrize("method", sorted(set(rows(costly=True)) - set(rows())))
def test_methods_of_two_passes_give_the_same_scores_everywhere(
    method: str, network: ModelOptions, id_folder: Path, ood_folder: Path, tmp_path: Path
) -> None:
    made = prepared(network, id_folder, method=method).guard
    guard = Guard.load(made.save(tmp_path / "guard"), made.model)
    paths = [*find_images([str(id_folder / "red")])][:4] + [*find_images([str(ood_folder)])][:4]
    wanted = made.judge(*paths).score.tolist()
    assert [record["score"] for record in score_images(guard, open_images(map(str, paths)))] == pytest.approx(
        wanted, rel=1e-4
    )
    worker = pytest.importorskip("idness.serve.service").Worker(guard, size=4)
    waiting = [worker.submit(HOW(Image.open(path))) for path in paths]
    worker.thread.start()
    worker.stop()  # once all is answered
    assert [answer.result(timeout=60)[0]["score"] for answer in waiting] == pytest.approx(wanted, rel=1e-4)


def test_duplicates_and_broken_files_are_left_out(network: ModelOptions, id_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(id_folder, tmp_path / "messy"))
    shutil.copy(folder / "red" / "0001.png", folder / "red" / "copy.png")
    (folder / "red" / "broken.jpg").write_bytes(b"<html>")
    (folder / "red" / "empty.png").write_bytes(b"")
    (folder / ".hidden").mkdir()
    guard, notes = prepared(network, folder, method="msp")
    assert len(guard.calibration or ()) == 240
    assert guard.gallery is not None
    assert len(guard.gallery) == 240
    text = "\n".join(notes)
    assert "skipped 1 duplicate images" in text
    assert "broken.jpg" in text
    assert "empty.png" in text


def test_methods_that_need_labels_refuse_flat_folders(
    network: ModelOptions, id_folder: Path, ood_folder: Path, tmp_path: Path
) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for index, file in enumerate(sorted(id_folder.rglob("*.png"))):
        shutil.copy(file, flat / f"{index}.png")
    with pytest.raises(InputError, match="must have labels"):
        prepared(network, flat, method="mds")
    guard, notes = prepared(network, flat, ood=ood_folder, gallery=False)
    assert any(note.startswith("not tried: mds") for note in notes)
    assert guard.class_names == ("red", "green", "blue", "yellow")
    assert guard.gallery is None


def test_accuracy_at_chance_level_is_refused(net_spec: str, weights: Path, id_folder: Path, tmp_path: Path) -> None:
    said = (
        "labelled images, chance level for 4 classes; check the weights, the order of the classes and the preprocessing"
    )
    stopped = idness("calibrate", net_spec, "--data", id_folder, "--method", "msp", "-o", tmp_path / "guard")
    assert (stopped.returncode, stopped.stdout, stopped.stderr.count("\n")) == (2, "", 1)
    assert said in stopped.stderr
    assert "or pass --any-accuracy to continue" in stopped.stderr
    assert not (tmp_path / "guard").exists()
    meant = prepared(net_spec, id_folder, method="msp", gallery=False, any_accuracy=True)
    assert any(said in note for note in meant.notes)
    trained = prepared(net_spec, id_folder, weights=weights, method="msp", gallery=False).notes
    assert not any("caution" in note for note in trained)


def test_a_network_without_preprocessing_needs_it(id_folder: Path, tmp_path: Path) -> None:
    bare = tmp_path / "plain.py"
    bare.write_text("from torch import nn\ndef make(): return nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 4))\n")
    with pytest.raises(ModelError, match="preprocessing is unknown; pass preprocessing="):
        prepared(f"{bare}:make", id_folder)
    words = ("calibrate", f"{bare}:make", "--data", id_folder, "--size", 8, "-o", tmp_path / "g")
    sized = idness(*words, "--mean", ".5,.5,.5", "--std", ".2,.2,.2", "--method", "msp", "--any-accuracy")
    assert sized.returncode == 0, sized.stderr


@pytest.mark.parametrize(
    ("flag", "folder"), [("--train", "id_folder"), ("--ood", "id_folder"), ("--train", "one copy")]
)
def test_images_in_two_sets_are_refused(
    net_spec: str, weights: Path, id_folder: Path, ood_folder: Path, tmp_path: Path, flag: str, folder: str
) -> None:
    other = id_folder
    if folder == "one copy":  # under another name and in another format
        other = tmp_path / "other"
        shutil.copytree(ood_folder, other)
        Image.open(next(id_folder.rglob("*.png"))).save(other / "copy.bmp")
    given = ("--weights", weights, "--data", id_folder, flag, other, "--method", "knn(k=1)", "-o", tmp_path / "guard")
    done = idness("calibrate", net_spec, *given)
    assert done.returncode == 2
    count = 1 if folder == "one copy" else 240
    assert f"--data and {flag} must have no image in common, got {count} in both" in done.stderr
    assert not (tmp_path / "guard").exists()


@pytest.mark.fault(
    "a guard is calibrated on images whose hashes idness train has stored",
    does="a caution with their number, whatever their format",
)
def test_training_images_of_a_run_get_a_caution(tmp_path: Path) -> None:
    """The same pixels in another format and under another name, among images that were not trained on."""
    data, size = write_folder(tmp_path / "data", 8), ("--size", 16)
    words = ("--model", "tiny_resnet", "--epochs", 1, "--batch-size", 8, "--method", "plain", "-q")
    assert idness("train", "--data", data, *size, "--out", tmp_path / "run", *words).returncode == 0
    fresh = write_folder(tmp_path / "fresh", 10, first=500)
    calibrate = ("--data", fresh, "--method", "msp", "--recall", 0.8, "--no-thumbnails", "--any-accuracy", "-q", "-o",
                 tmp_path / "guard")  # fmt: skip
    assert "trained on" not in idness("calibrate", tmp_path / "run", *calibrate).stderr
    for place, file in enumerate(sorted((data / "red").iterdir())[:3]):
        Image.open(file).save(fresh / "red" / f"new{place}.bmp")
    cautioned = idness("calibrate", tmp_path / "run", *calibrate).stderr
    assert "the network was trained on at least 3 of the 43 images of fresh" in cautioned
    (tmp_path / "run" / "images.safetensors").write_bytes(b"junk")
    refused = idness("calibrate", tmp_path / "run", *calibrate)
    assert refused.returncode == 2
    assert "images.safetensors: is damaged" in refused.stderr


@pytest.mark.slow
def test_the_engineers_example_runs(tmp_path: Path) -> None:
    words = [sys.executable, "-W", "error", str(ROOT / "examples" / "engineer.py"), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "guard" / "guard.json").is_file()
    assert (tmp_path / "guard.onnx").is_file()
    assert "flagged" in done.stdout


def test_too_few_images_for_both_halves_are_counted_together(network: ModelOptions, id_folder: Path) -> None:
    some = sorted(id_folder.rglob("*.png"))[::5][:30]
    with pytest.raises(InputError, match="the other half must have at least 19: 37 in total, got 30; add images"):
        Guard.for_images(network, some, method="knn")
    assert len(Guard.for_images(network, some, method="ebo").rule().calibration) == 30

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from colour_world import known, write_folder, write_ood
from PIL import Image

from idness.activations.extract import collect
from idness.core.errors import DataError, IdnessError, InputError, ModelError
from idness.core.types import Activations
from idness.data import FileSet, Preprocessing, open_set
from idness.detectors.registry import parse, rows, short
from idness.guard import Guard
from idness.guard.calibrate import prepare_guard
from idness.guard.judge import find_images, judge_images
from idness.metrics import auroc
from idness.networks.open import ModelOptions, open_network
from idness.selection.recommend import recommend_for
from tests.cli.running import idness


@pytest.fixture(scope="module")
def calibrated(net_spec: str, weights: Path, id_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a guard, and beside it the list of model files that this one's owner trusts."""
    place = tmp_path_factory.mktemp("calibrated")
    words = ("--weights", weights, "--data", id_folder, "--method", "scale", "-o", place / "guard")
    done = idness("calibrate", net_spec, *words, XDG_STATE_HOME=str(place / "state"))
    assert done.returncode == 0, done.stderr
    return place


@pytest.fixture
def made(calibrated: Path, tmp_path: Path, own_state: None) -> Path:
    shutil.copytree(calibrated / "state", tmp_path / "state")
    return Path(shutil.copytree(calibrated / "guard", tmp_path / "guard"))


def test_three_commands(made: Path, id_folder: Path, ood_folder: Path, tmp_path: Path) -> None:
    assert {file.name.partition("-")[0] for file in made.iterdir()} == {"guard.json", "tensors", "weights"}
    known_images = sorted((id_folder / "red").glob("*.png"))[:5]
    done = idness("score", made, *known_images, ood_folder, "--json")
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert len(records) == 35
    assert sum(record["is_ood"] for record in records[5:]) > 20
    assert [record["class"] for record in records[:5]] == ["red"] * 5
    assert idness("score", made, ood_folder, "--strict").returncode == 1
    model = tmp_path / "model.onnx"
    exported = idness("export", made, model)
    assert exported.returncode == 0, exported.stderr
    assert model.stat().st_size > 10_000
    assert "model.onnx" in exported.stdout


def test_score_prints_tables_csv_and_reads_lists(made: Path, id_folder: Path, tmp_path: Path) -> None:
    odd_name = tmp_path / 'a,[b] "c".png'
    known("blue", 4).save(odd_name)
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no image")
    paths = [odd_name, broken, tmp_path / "absent.png"]
    done = idness("score", made, "-", "--csv", stdin="\n".join(map(str, paths)) + "\n")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["image"] for row in rows] == [str(path) for path in paths]
    assert rows[0]["class"] == "blue"
    assert "must be one of" in rows[1]["error"]
    assert "cannot be read" in rows[2]["error"]
    table = idness("score", made, odd_name, broken)
    assert "[b]" in table.stdout
    assert "unread" in table.stdout
    assert "of 2 images out-of-distribution, 1 unread" in table.stdout
    strict = idness("score", made, broken, "--strict")
    assert strict.returncode == 1
    pattern = idness("score", made, id_folder / "*" / "000?.png", "--json")
    assert len(pattern.stdout.splitlines()) == 40


@pytest.mark.parametrize("form", ["--json", "--csv", ""])
def test_rows_come_as_soon_as_they_are_known(made: Path, id_folder: Path, form: str) -> None:
    paths = sorted(map(str, id_folder.rglob("*.png")))[:4]
    seen = []

    def listed() -> Iterator[str]:
        for path in paths:
            yield f"{path}\n"
            seen.append([path in sys.stdout.getvalue() for path in paths])  # type: ignore[attr-defined]

    words = [form] if form else []
    assert idness("score", made, "-", *words, "--batch", 2, "--quiet", stdin=listed()).returncode == 0
    assert seen[1] == [True, True, False, False]  # asked for more images only when these were told


def test_names_cannot_steer_the_terminal(made: Path, tmp_path: Path) -> None:
    odd = tmp_path / "a\x1b[31mb\n.png"
    known("blue", 4).save(odd)
    done = idness("score", made, odd)
    assert "\x1b" not in done.stdout
    assert len(done.stdout.splitlines()) == 4


def test_another_recall_and_thresholds(made: Path, id_folder: Path) -> None:
    loose = idness("score", made, id_folder, "--json", "--recall", "0.6").stdout
    plain = idness("score", made, id_folder, "--json").stdout
    assert loose.count('"is_ood": true') > 2 * plain.count('"is_ood": true') > 0
    done = idness("score", made, id_folder, "--recall", "0.9999")
    assert done.returncode == 2
    assert "needs at least 9999" in done.stderr


def test_auto_measures_where_ood_images_are_given_and_says_why(
    net_spec: str, weights: Path, id_folder: Path, tmp_path: Path
) -> None:
    ood_folder = write_ood(tmp_path / "odd", 60)
    made = prepare_guard(ModelOptions(net_spec, weights), id_folder, method="auto", ood=ood_folder)
    why = next(note for note in made.notes if note.startswith("auto:"))
    assert "% on OOD validation images)" in why
    assert why.startswith(f"auto: Recommended: {made.guard.detector.name}")
    assert len(made.guard.calibration or ()) == 120  # the other half chose
    assert len(made.guard.detector.seen_rows()) == 120
    again = prepare_guard(ModelOptions(net_spec, weights), id_folder, method="auto", ood=ood_folder)
    assert torch.equal(again.guard.threshold(), made.guard.threshold())


def test_auto_asks_the_doctor_where_none_are(net_spec: str, weights: Path, id_folder: Path) -> None:
    made = prepare_guard(ModelOptions(net_spec, weights), id_folder, method="auto")
    assert any("on pseudo-OOD images made of" in note for note in made.notes)
    assert made.guard.calibration is not None


def test_detectors_never_learn_from_what_calibrates(
    net_spec: str, weights: Path, id_folder: Path, tmp_path: Path
) -> None:
    halved = prepare_guard(ModelOptions(net_spec, weights), id_folder, method="knn(k=1)").guard
    assert len(halved.calibration or ()) == 120
    assert len(halved.detector.state()["bank_"]) == 120
    # The nearest neighbour of an image that was learned from is itself, at distance 0.
    assert float((halved.calibration.scores if halved.calibration else torch.zeros(1)).max()) < -1e-7
    taught = write_folder(tmp_path / "train", 20, first=7_000)
    apart = prepare_guard(ModelOptions(net_spec, weights), id_folder, method="knn(k=1)", train=taught).guard
    assert len(apart.calibration or ()) == 240
    assert len(apart.detector.state()["bank_"]) == 80


@pytest.mark.parametrize("method", sorted(set(rows(costly=True)) - set(rows())))
def test_methods_that_look_twice_are_calibrated_scored_and_served(
    method: str, net_spec: str, weights: Path, id_folder: Path, ood_folder: Path, tmp_path: Path
) -> None:
    found = prepare_guard(ModelOptions(net_spec, weights), id_folder, method=method).guard
    assert found.gallery is not None
    guard = Guard.load(found.save(tmp_path / "guard"), found.model)
    paths = [*find_images([str(id_folder / "red")])][:4] + [*find_images([str(ood_folder)])][:4]
    told = [record["score"] for record in judge_images(guard, paths)]
    wanted = found.judge(*paths).score.tolist()
    assert told == pytest.approx(wanted, rel=1e-4)
    worker = pytest.importorskip("idness.serve.worker").Worker(guard, size=4)
    waiting = [worker.submit(guard.prepare(path)) for path in paths]
    worker.start()
    worker.stop()  # once all is answered
    assert [answer.result(timeout=60)[0]["score"] for answer in waiting] == pytest.approx(wanted, rel=1e-4)


def test_copies_and_broken_files_are_left_out_and_told(
    net_spec: str, weights: Path, id_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "messy"
    shutil.copytree(id_folder, folder)
    shutil.copy(folder / "red" / "0001.png", folder / "red" / "copy.png")
    (folder / "red" / "broken.jpg").write_bytes(b"<html>")
    (folder / "red" / "empty.png").write_bytes(b"")
    (folder / ".hidden").mkdir()
    made = prepare_guard(ModelOptions(net_spec, weights), folder, method="msp")
    assert len(made.guard.calibration or ()) == 240
    notes = "\n".join(made.notes)
    assert "left out 1 images that are there twice" in notes
    assert "broken.jpg" in notes
    assert "empty.png" in notes


def test_flat_folders_have_no_labels_and_methods_that_need_them_say_so(
    net_spec: str, weights: Path, id_folder: Path, ood_folder: Path, tmp_path: Path
) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for index, file in enumerate(sorted(id_folder.rglob("*.png"))):
        shutil.copy(file, flat / f"{index}.png")
    with pytest.raises(InputError, match="must have labels"):
        prepare_guard(ModelOptions(net_spec, weights), flat, method="mds")
    made = prepare_guard(ModelOptions(net_spec, weights), flat, method="auto", ood=ood_folder)
    assert any(note.startswith("not tried: mds") for note in made.notes)
    assert made.guard.class_names == ("red", "green", "blue", "yellow")


def test_methods_are_compared_on_images_that_they_did_not_learn_from(
    net_spec: str, weights: Path, id_folder: Path, tmp_path: Path
) -> None:
    network = open_network(ModelOptions(net_spec, weights))
    taught = collect(network, open_set(str(write_folder(tmp_path / "train", 12, first=7_000)))).acts
    known = collect(network, open_set(str(id_folder)))
    # Between training images of two classes: near what was learned, so that to know it by heart pays.
    between = taught.features.flip(0) * 0.5 + taught.features * 0.5
    ood = Activations(between, network.split.head(between))
    found = recommend_for(network, known, learn=taught, ood=ood).aurocs
    tried = [parse(text) for text in found if parse(text).needs_train and not parse(text).needs_val]
    assert len(tried) > 5
    by_heart = []
    for detector in tried:
        detector.fit(network.split.head, taught, val=known.acts)  # of which at most a number or two is taken
        held, learned = (auroc(detector.score(acts), detector.score(ood)) for acts in (known.acts, taught))
        assert found[short(detector)] == pytest.approx(held, abs=1e-6), short(detector)
        by_heart.append(learned - held)
    assert max(by_heart) > 0.05  # what was reported if they were compared on what they learned


def test_forgotten_weights_are_noticed(net_spec: str, weights: Path, id_folder: Path, tmp_path: Path) -> None:
    said = (
        "labelled images, chance level for 4 classes; check the weights, the order of the classes and the preprocessing"
    )
    stopped = idness("calibrate", net_spec, "--data", id_folder, "--method", "msp", "-o", tmp_path / "guard")
    assert (stopped.returncode, stopped.stdout, stopped.stderr.count("\n")) == (2, "", 1)
    assert said in stopped.stderr
    assert "or pass --any-accuracy to continue" in stopped.stderr
    assert not (tmp_path / "guard").exists()
    meant = prepare_guard(net_spec, id_folder, method="msp", gallery=False, any_accuracy=True)
    assert any(said in note for note in meant.notes)
    trained = prepare_guard(ModelOptions(net_spec, weights), id_folder, method="msp", gallery=False).notes
    assert not any("caution" in note for note in trained)


def test_gallery_is_of_calibration_images(net_spec: str, weights: Path, id_folder: Path) -> None:
    made = prepare_guard(ModelOptions(net_spec, weights), id_folder, method="scale").guard
    assert made.gallery is not None
    assert len(made.gallery) == 240
    assert prepare_guard(ModelOptions(net_spec, weights), id_folder, method="msp", gallery=False).guard.gallery is None


def test_wrong_calls_get_one_line(net_spec: str, weights: Path, id_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError):
        prepare_guard(ModelOptions(net_spec, weights), tmp_path / "nowhere")
    (tmp_path / "bare").mkdir()
    with pytest.raises(DataError, match="holds no images"):
        prepare_guard(ModelOptions(net_spec, weights), tmp_path / "bare")
    with pytest.raises(IdnessError, match="unknown method"):
        prepare_guard(ModelOptions(net_spec, weights), id_folder, method="scal")
    bare = tmp_path / "plain.py"
    bare.write_text("from torch import nn\ndef make(): return nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 4))\n")
    with pytest.raises(ModelError, match="preprocessing is unknown; without any, .*; pass preprocessing="):
        prepare_guard(f"{bare}:make", id_folder)
    sized = idness("calibrate", f"{bare}:make", "--data", id_folder, "--size", 8, "--mean", ".5,.5,.5", "--std", ".2,.2,.2",
                    "--method", "msp", "--any-accuracy", "-o", tmp_path / "g")  # fmt: skip
    assert sized.returncode == 0, sized.stderr
    wrong = idness("calibrate", f"{bare}:make", "--data", id_folder, "--size", 8, "--mean", "a", "-o", tmp_path / "g")
    assert wrong.returncode == 2
    assert "mean" in wrong.stderr
    with pytest.raises(DataError, match="no image at"):
        list(find_images([str(tmp_path / "*.gif")]))


def test_a_guard_of_a_models_file_needs_it_named_elsewhere(
    made: Path, id_folder: Path, net_spec: str, monkeypatch, tmp_path: Path
) -> None:
    image = next(id_folder.rglob("*.png"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    refused = idness("score", made, image)
    assert refused.returncode == 2
    assert f"read it, then pass --model path/to/{Path(net_spec).name}" in refused.stderr
    assert idness("score", made, image, "--model", net_spec).returncode == 0
    assert idness("score", made, image).returncode == 0


def test_images_of_many_sizes_without_a_fixed_input(trained: torch.nn.Module, tmp_path: Path) -> None:
    guard = Guard(trained, "msp", preprocessing=Preprocessing(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25)))
    guard.calibrate([torch.stack([guard.prepare(known("red", seed)) for seed in range(30)])])
    for side in (16, 24, 40):
        known("red", 1, side=side).save(tmp_path / f"{side}.png")
    assert len(list(judge_images(guard, sorted(tmp_path.glob("*.png"))))) == 3


def test_files_are_decoded_ahead_of_the_network(
    trained: torch.nn.Module, id_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = Preprocessing(16, 16, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    guard = Guard(trained, "msp", preprocessing=how)
    guard.calibrate([torch.stack([guard.prepare(known("red", seed)) for seed in range(30)])])
    files, read = sorted(id_folder.rglob("*.png"))[:12], []
    picture = FileSet.picture
    monkeypatch.setattr(FileSet, "picture", lambda self, index: read.append(index) or picture(self, index))
    records = judge_images(guard, files, batch=2)
    assert next(records)["image"] == str(files[0])
    assert len(read) >= 4  # the next batch is read while the first is judged
    assert [record["image"] for record in records] == [str(path) for path in files[1:]]


@pytest.mark.parametrize(
    ("flag", "folder"), [("--train", "id_folder"), ("--ood", "id_folder"), ("--train", "one copy")]
)
def test_images_that_serve_twice_are_refused(
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
    "a guard is calibrated on images that the network was trained on",
    does="accuracy far above that in validation is told; images that are in --train too are refused",
)
def test_images_that_were_trained_on_are_noticed(net_spec: str, weights: Path, id_folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "weights.safetensors").write_bytes(weights.read_bytes())
    for right, told in (("0.6", True), ("0.999", False), ("", False), ("nonsense", False)):
        (run / "log.csv").write_text(f"epoch,val_accuracy\n1,0.1\n2,{right}\n")
        notes = prepare_guard(
            ModelOptions(net_spec, run / "weights.safetensors"), id_folder, method="msp", gallery=False
        ).notes
        assert any("if it was trained on them" in note for note in notes) is told, notes


@pytest.mark.fault(
    "a guard is calibrated on images of which idness train has kept the hash",
    does="told, with how many, in whatever format they are",
)
def test_images_of_the_run_are_known_again(tmp_path: Path) -> None:
    """The same pixels, in another format and under another name, among others that were not trained on."""
    data, size = write_folder(tmp_path / "data", 8), ("--size", 16)
    words = ("--arch", "tiny_resnet", "--epochs", 1, "--batch-size", 8, "--method", "plain", "-q")
    assert idness("train", "--data", data, *size, "--out", tmp_path / "run", *words).returncode == 0
    fresh = write_folder(tmp_path / "fresh", 10, first=500)
    calibrate = ("--data", fresh, "--method", "msp", "--recall", 0.8, "--no-thumbnails", "--any-accuracy", "-q", "-o",
                 tmp_path / "guard")  # fmt: skip
    assert "trained on" not in idness("calibrate", tmp_path / "run", *calibrate).stderr
    for place, file in enumerate(sorted((data / "red").iterdir())[:3]):
        Image.open(file).save(fresh / "red" / f"new{place}.bmp")
    told = idness("calibrate", tmp_path / "run", *calibrate).stderr
    assert "at least 3 of the 43 images of fresh are among those that the network was trained on" in told
    (tmp_path / "run" / "images.safetensors").write_bytes(b"junk")
    refused = idness("calibrate", tmp_path / "run", *calibrate)
    assert refused.returncode == 2
    assert "images.safetensors: is damaged" in refused.stderr

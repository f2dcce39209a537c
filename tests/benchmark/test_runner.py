from __future__ import annotations

import tracemalloc
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from idness.activations.store import FeatureStore
from idness.benchmark import Benchmark, Settings, extraction, run
from idness.benchmark.evaluate import SetScores, score_set
from idness.benchmark.results import Report
from idness.benchmark.runner import duplicates
from idness.core.errors import DataError, IdnessError, ModelError
from idness.core.files import key_of
from idness.core.progress import Progress
from idness.core.types import Activations, Head
from idness.data.activations import ActivationsSet
from idness.detectors.detector import Detector, Enhancer
from idness.detectors.registry import build, parse, rows
from idness.metrics import accepted_accuracy, all_metrics, aurc
from idness.networks.split import SplitModel
from idness.selection.search import Choice
from tests.measured import bench
from tests.measured import network as disturbed
from tests.measured import place as drawn
from tests.pictures import network, pictures, world


class Heard(Progress):
    def __init__(self) -> None:
        self.notes, self.warned, self.phases = list[str](), list[str](), list[tuple[str, int]]()
        self.note, self.warn = self.notes.append, self.warned.append
        self.phase = lambda *phase: self.phases.append(phase)


def go(path: Path, heard: Heard | None = None, **settings: object) -> Report:
    options = {"weights": path.parent / "weights.safetensors", "cache": path.parent / "cache"} | settings
    return run(path, f"{path.parent}/net.py:make", Settings(**options), heard)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def report(place: Path) -> Report:
    return go(place, command="idness bench")


def normalized(images: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(images).movedim(-1, 1).float().div(255).sub(0.5).div(0.25)


def seen(seed: int, known: bool = True, row: str = "ebo", **options: object) -> Activations:
    """Return a fresh network's activations of a set, and of its images as a method edits them; with labels of known images."""
    images, labels = pictures(60, seed, known)
    batch = normalized(images)
    found = SplitModel(network(), example=batch[:2]).split(batch, edit_with=build(row, **options).input_edit)
    return replace(found, labels=torch.from_numpy(labels) if known else None)


def head() -> Head:
    return SplitModel(network(), example=torch.rand(2, 3, 16, 16)).head


def test_numbers_are_those_of_a_slow_rederivation(report: Report, place: Path) -> None:
    assert set(report.methods) == set(rows())
    assert {"torch", "decoder"} <= report.provenance["versions"].keys()
    assert report.peak_memory > 10**7
    train, val, known, unknown = seen(0), seen(1), seen(2), seen(5, known=False)
    for row, method in report.methods.items():
        detector = build(row, **method.options).fit(head(), train, val=val)
        ids, oods = detector.score(known), detector.score(unknown)
        assert torch.allclose(ids, torch.from_numpy(report.scores.of(row, "id_test")), rtol=1e-3, atol=1e-3), row
        right = known.logits.argmax(dim=1).eq(known.labels).numpy()
        expected = all_metrics(ids, oods) | {"aurc": aurc(ids, right, oods)}
        expected["accepted_accuracy"] = accepted_accuracy(ids, right, oods)
        for name, value in expected.items():
            assert getattr(method.sets["grey"], name) == pytest.approx(value, abs=0.002), (row, name)
        if isinstance(detector, Enhancer):
            right = detector.shaped_logits(known).argmax(dim=1).eq(known.labels)
            assert method.id_accuracy_shaped == pytest.approx(float(right.double().mean()))
        else:
            assert method.id_accuracy_shaped == report.id_accuracy


def test_the_accuracy_of_an_edited_network_is_its_own(tmp_path: Path) -> None:
    rows_ = ("msp", "ash(variant=p,percentile=95)", "dice(percentile=95)")
    found = bench(tmp_path, disturbed=1.0, rows=rows_)
    split = SplitModel(disturbed(0, 1.0), example=torch.rand(2, 3, 16, 16))
    known, labels = (np.load(Path(drawn().name) / "test.npz")[name] for name in ("images", "labels"))
    train = np.load(Path(drawn().name) / "train.npz")["images"]
    for row in rows_[1:]:
        detector = parse(row).fit(split.head, split.split(normalized(train)))
        right = (detector.shaped_logits(split.split(normalized(known))).argmax(dim=1).numpy() == labels).mean()  # type: ignore[attr-defined]
        assert found.methods[row].id_accuracy_shaped == pytest.approx(right)
        assert found.methods[row].id_accuracy_shaped != found.id_accuracy
    assert found.methods["msp"].id_accuracy_shaped == found.id_accuracy


def test_options_are_chosen_on_validation_data_only(report: Report, tmp_path: Path) -> None:
    path = world(tmp_path)
    for name in ("near", "far"):  # other test sets, the same choice
        np.savez(tmp_path / f"{name}.npz", images=pictures(20, 31)[0])
    chosen = [
        {row: (method.options, method.validation_auroc) for row, method in found.methods.items()}
        for found in (report, go(path))
    ]
    assert chosen[0] == chosen[1]


def test_second_run_touches_no_network_and_gives_the_same(
    report: Report, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SplitModel, "split", lambda *_, **__: pytest.fail("the network ran"))
    read, init = [], ActivationsSet.__init__

    def noted(self: ActivationsSet, name: str, count: int, shards: Any, *more: Any, **options: Any) -> None:
        init(self, name, count, lambda: read.append(name) or shards(), *more, **options)

    monkeypatch.setattr(ActivationsSet, "__init__", noted)
    again = go(place)
    assert read.count("id_train") == 1
    assert again.time["images"] == 0
    assert again.time["cached"] == 360
    for row, method in report.methods.items():
        assert again.methods[row].sets == method.sets
        assert again.methods[row].groups == method.groups


def test_scores_file_and_wrong_images(report: Report) -> None:
    assert "labels/id_test" in report.scores.arrays
    assert report.scores.index("grey").tolist() == list(range(60))
    for row, parts in report.wrong.items():
        lowest = [entry.score for entry in parts["id_test"]]
        assert lowest == sorted(report.scores.of(row, "id_test").tolist())[:8]
        highest = [entry.score for entry in parts["far"]]
        assert highest == sorted(report.scores.of(row, "grey").tolist(), reverse=True)[:8]
        images = pictures(60, seed=5, known=False)[0]
        assert all(np.array_equal(report.thumbs[f"grey/{each.index}"], images[each.index]) for each in parts["far"])


def test_phases_and_preprocessing_are_reported(place: Path) -> None:
    heard = Heard()
    assert go(place, heard).warnings == heard.warned
    assert heard.phases[0] == ("network", 360)
    assert "mean (0.5, 0.5, 0.5)" in heard.notes[0]
    assert heard.warned == [  # and nothing else
        "no interval for FPR at 95 % ID recall: needs at least 72 images, got id_test (60)",
        "no interval for FPR at 95 % OOD recall: needs at least 72 images, got mixed (60), grey (60)",
    ]


def test_bad_and_doubled_images_are_reported(place: Path, tmp_path: Path) -> None:
    path = world(tmp_path)
    folder = tmp_path / "mess"
    folder.mkdir()
    known = pictures(60, seed=2)[0]
    for number in range(3):
        Image.fromarray(known[number]).save(folder / f"{number}.png")
    (folder / "9.png").write_bytes(b"junk")
    path.write_text(path.read_text().replace("far.npz", "mess"))
    heard = Heard()
    found = go(path, heard, methods=["msp"])
    assert found.sets["grey"].images == 3
    assert found.sets["grey"].skipped[0]["item"] == "9.png"
    assert found.duplicates == [{"sets": ["id_test", "grey"], "images": 3, "near": 0}]
    assert any("in both id_test and grey: 3 images" in line for line in heard.warned)
    assert any("grey: 1 images were skipped; first: 9.png" in line for line in heard.warned)
    for number in range(3):
        (folder / f"{number}.png").unlink()
    with pytest.raises(DataError, match="grey: none of its images can be used; first reason: 9.png"):
        go(path, methods=["msp"])


def test_repeated_images_and_an_auroc_below_chance_are_reported(tmp_path: Path) -> None:
    path = world(tmp_path)
    known, odd = pictures(60, seed=2)[0], pictures(60, seed=5, known=False)[0]
    images = np.concatenate([odd, odd[:2]])  # the other way round
    np.savez(tmp_path / "test.npz", images=images, labels=np.arange(62) % 4)
    np.savez(tmp_path / "far.npz", images=known)
    found = go(path, methods=["msp", "ebo"], any_accuracy=True, cache=tmp_path / "cache")
    assert {"sets": ["id_test"], "images": 2, "near": 0} in found.duplicates
    assert any(line.startswith("twice in id_test: 2 images") for line in found.warnings)
    assert max(method.sets["grey"].intervals["auroc"][1] for method in found.methods.values()) < 0.5
    assert "grey: AUROC below 50 % with msp, ebo; OOD images score above ID images" in found.warnings


@pytest.mark.fault("near-duplicates of ID images among OOD images", does="counted in the report, with a warning")
def test_near_copies_are_reported(tmp_path: Path) -> None:
    path = world(tmp_path)
    copies = [Image.fromarray(image).resize((32, 32), Image.Resampling.NEAREST) for image in pictures(60, seed=2)[0]]
    np.savez(tmp_path / "copies.npz", images=np.stack([np.asarray(copy) for copy in copies]))
    text = path.read_text().replace("far.npz", "copies.npz")
    path.write_text(text.replace("[preprocessing]", "[preprocessing]\nresize = [16, 16]"))
    heard = Heard()
    found = go(path, heard, methods=["msp"])
    [pair] = [pair for pair in found.duplicates if pair["sets"] == ["id_test", "grey"]]
    assert pair["images"] == 0
    assert 30 <= pair["near"] <= 60  # of 16 x 16 pixels, half of them noise, some have no look
    assert any(f"in both id_test and grey: {pair['near']} near-duplicates" in line for line in heard.warned)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('["red", "green", "blue", "yellow"]', "5", "has 5 classes, the network has 4"),
        ("far.npz", "nowhere.npz", "grey: nowhere.npz does not exist"),
        ('"far.npz"', '{ path = "far.npz", images = "pix" }', "has no 'pix'"),
        ("mean = ", "men = ", "unknown option 'men'"),
    ],
)
def test_mistakes_are_reported_before_anything_runs(
    place: Path, old: str, new: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("idness.benchmark.extraction.extract", lambda *_, **__: pytest.fail("it ran"))
    path = place.parent / "wrong.toml"
    path.write_text(place.read_text().replace(old, new))
    with pytest.raises(IdnessError, match=message) as caught:
        go(path)
    assert "\n" not in str(caught.value)


@dataclass(kw_only=True)
class Constant(Detector):
    """One score for all images."""

    def rate(self, acts: Activations) -> torch.Tensor:
        return torch.ones(len(acts))


def test_a_degenerate_method_is_reported_and_never_the_best() -> None:
    benchmark = Benchmark(name="b", title="b", id={"val": "val.npz", "test": "test.npz"}, far={"noise": "noise.npz"},
                          preprocessing={"mean": [0.5] * 3, "std": [0.25] * 3}, base=Path(drawn().name))  # fmt: skip
    found = run(benchmark, disturbed(), Settings(methods=(Constant, "msp")))
    worst = found.methods["constant"].sets["noise"]
    assert (worst.auroc, worst.fpr_at_id_recall, worst.fpr_at_ood_recall) == (0.5, 1.0, 1.0)
    assert [found.methods[row].degenerate for row in ("constant", "msp")] == [True, False]
    assert found.answer is not None
    assert found.answer.best == "msp"
    results = found.methods["constant"]
    assert not any(metrics.marks for metrics in (*results.sets.values(), *results.groups.values()))
    assert any("constant: nearly all images have the same score" in text for text in found.warnings)


def test_forgotten_weights_are_noticed(tmp_path: Path) -> None:
    chance = "on 150 labelled images, chance level for 4 classes"
    with pytest.raises(ModelError, match=f"{chance}.*any_accuracy=True to continue"):
        bench(tmp_path / "a", disturbed=None, rows=("msp",))
    meant = bench(tmp_path / "a", disturbed=None, rows=("msp",), any_accuracy=True)
    assert any(chance in text for text in meant.warnings)
    assert not any(chance in text for text in bench(tmp_path / "b", rows=("msp",)).warnings)


def test_labels_beyond_the_classes_and_misspelt_methods(place: Path, tmp_path: Path) -> None:
    path = world(tmp_path)
    np.savez(tmp_path / "test.npz", images=pictures(6, 0)[0], labels=np.arange(6))
    with pytest.raises(DataError, match="id_test: has 6 classes, the network has 4"):
        go(path)
    with pytest.raises(IdnessError, match="did you mean 'scale'"):
        go(place, methods=["scal"])
    with pytest.raises(ModelError, match="needs model="):
        run(place)


def write_activations(place: Path, folder: Path) -> str:
    """Write the sets of the benchmark as activations, and return its text with their head."""
    save_file({"weight": head().weight, "bias": head().offset}, folder / "head.safetensors")
    for seed, name in enumerate(("train", "val", "test", "uval", "near", "far")):
        found = seen(seed, known=seed < 3)
        tensors = {"features": found.features, "logits": found.logits}
        save_file(tensors | ({"labels": found.labels} if seed < 3 else {}), folder / f"{name}.safetensors")  # type: ignore[dict-item]
    text = place.read_text().replace(".npz", ".safetensors")
    return text.replace("classes =", 'head = "head.safetensors"\nclasses =')


@pytest.mark.fault("the same activations as ID test set and as OOD set", does="warns with their number")
def test_activations_of_other_programs(report: Report, place: Path, tmp_path: Path) -> None:
    text = write_activations(place, tmp_path)
    (tmp_path / "acts.toml").write_text(text)
    other = run(tmp_path / "acts.toml", None, Settings(cache=tmp_path / "cache"))
    assert other.model.spec == "activations"
    assert other.thumbs == {}
    for row in ("ebo", "scale", "knn", "rmds"):
        assert other.methods[row].options == report.methods[row].options
        assert other.methods[row].sets["grey"].auroc == pytest.approx(report.methods[row].sets["grey"].auroc, abs=0.002)
    assert not (tmp_path / "cache").exists()
    # The same activations as ID and as OOD images are reported, whatever their files are called.
    (tmp_path / "twice.toml").write_text(text.replace("far.safetensors", "test.safetensors"))
    twice = run(tmp_path / "twice.toml", None, Settings(cache=tmp_path / "cache", methods=("ebo",)))
    assert any("in both id_test and" in line for line in twice.warnings)
    assert not any("in both" in line for line in other.warnings)
    for file in tmp_path.glob("*.safetensors"):
        arrays = {name: value.numpy() for name, value in load_file(file).items() if name != "logits"}
        np.savez(file.with_suffix(".npz"), **arrays)
    (tmp_path / "npz.toml").write_text(text.replace(".safetensors", ".npz"))
    bare = run(tmp_path / "npz.toml", None, Settings(cache=tmp_path / "cache", methods=("ebo", "scale")))
    assert bare.methods["scale"].sets["grey"].auroc == pytest.approx(
        other.methods["scale"].sets["grey"].auroc, abs=1e-6
    )
    wrong = np.load(tmp_path / "test.npz")
    np.savez(tmp_path / "test.npz", features=wrong["features"], labels=wrong["labels"] + 70)
    with pytest.raises(DataError, match=r"id_test: labels must be in \[0, 3\], got 70 to 73"):
        run(tmp_path / "npz.toml")
    (tmp_path / "acts.toml").write_text(text.replace('head = "head.safetensors"', ""))
    with pytest.raises(DataError, match="set head to"):
        run(tmp_path / "acts.toml")


def test_partial_runs_with_what_is_there(tmp_path: Path) -> None:
    path = world(tmp_path)
    for name in ("near", "uval", "train"):
        (tmp_path / f"{name}.npz").unlink()
    found = go(path, partial=True)
    assert list(found.benchmark.groups) == ["far"]
    assert "mixed is skipped: near.npz does not exist" in found.warnings
    assert "knn" in found.failed
    assert all(method.chosen_by == "default" for method in found.methods.values())


def test_test_sets_are_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    """Score a set of many shards and watch the memory: it holds a shard or two, not the set."""
    size, width, shards = 200, 500, 40
    store, last, names = FeatureStore(tmp_path), Head(torch.randn(3, width)), {}
    for number in range(shards):
        features, labels = torch.rand(size, width), torch.zeros(size, dtype=torch.long)
        hashes = torch.zeros(size, 16, dtype=torch.uint8)
        found = Activations(features, last(features), labels, index=torch.arange(size), hashes=hashes)
        names[key_of(str(number))] = store.put(key_of(str(number)), found)
    store.finish("whole", names, {})
    source = ActivationsSet("whole", size * shards, lambda: store.shards("whole"), role="id_test")
    choices = {"ebo": Choice(build("ebo").fit(last), "default")}
    tracemalloc.start()
    try:
        scored = score_set(source, choices)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(scored.index) == size * shards
    assert peak < 5 * (size * width * 4)  # all would be 40 shards


TWICE = sorted(set(rows(costly=True)) - set(rows()))


@pytest.fixture(scope="module")
def edited(place: Path) -> Report:
    """Results of the methods that edit images."""
    return go(place, methods=["ebo", *TWICE])


@pytest.mark.parametrize("row", TWICE)
def test_their_numbers_are_those_of_a_slow_rederivation(row: str, edited: Report) -> None:
    found = edited.methods[row]
    detector = build(row, **found.options)
    train, val, known, unknown = (seen(seed, seed < 3, row, **found.options) for seed in (0, 1, 2, 5))
    detector.fit(head(), train, val=val)
    ids, oods = detector.score(known), detector.score(unknown)
    np.testing.assert_allclose(edited.scores.of(row, "id_test"), ids.numpy(), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(edited.scores.of(row, "grey"), oods.numpy(), rtol=1e-3, atol=1e-3)
    assert found.sets["grey"].auroc == pytest.approx(all_metrics(ids, oods)["auroc"], abs=0.002)


def test_a_second_run_finds_the_changed_images_in_the_store_and_other_options_do_not(
    edited: Report, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = 5  # all but the training images, which no row of two passes learns from where there are validation images
    other = go(place, methods=["odin(eps=0.3)"])
    assert (other.time["images"], other.time["cached"]) == (60 * sets, 360)
    row = "odin(eps=0.3)"
    assert not np.allclose(other.scores.of(row, "grey"), edited.scores.of("odin", "grey"), rtol=1e-4)

    monkeypatch.setattr(SplitModel, "split", lambda *_, **__: pytest.fail("the network ran"))
    again = go(place, methods=["ebo", *TWICE])
    assert again.time["images"] == 0
    for name in TWICE:
        assert again.methods[name].groups == edited.methods[name].groups
    assert again.sets["id_test"].sha256 == edited.sets["id_test"].sha256


def test_activations_in_place_of_images_cannot_be_changed(place: Path, tmp_path: Path) -> None:
    (tmp_path / "acts.toml").write_text(write_activations(place, tmp_path))
    found = run(tmp_path / "acts.toml", None, Settings(methods=["ebo", "odin"], cache=tmp_path / "cache"))
    assert set(found.methods) == {"ebo"}
    assert "the benchmark has activations instead of images" in found.failed["odin"]


def test_methods_learn_from_a_seeded_sample_of_large_training_sets(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = go(place, methods=["knn(k=3)"], engine="eager")
    monkeypatch.setattr(extraction, "TRAIN_SAMPLE", 20)
    first, again = (go(place, methods=["knn(k=3)"], engine="eager") for _ in range(2))
    assert first.sets["id_train"].images == whole.sets["id_train"].images
    scores = [np.asarray(report.scores.of("knn(k=3)", "id_test")) for report in (whole, first, again)]
    np.testing.assert_array_equal(scores[1], scores[2])
    assert not np.allclose(scores[0], scores[1])
    bank = seen(0)
    order = torch.randperm(len(bank), generator=torch.Generator().manual_seed(0))[:20]
    expected = build("knn", k=3).fit(head(), bank[order]).score(seen(2))
    np.testing.assert_allclose(scores[1], expected.numpy(), rtol=1e-4, atol=1e-4)


ROLES = ("id_train", "id_val", "id_test", "ood_val", "near", "far")
MAY_SHARE = {("id_train", "id_val"), ("near", "far")}


@pytest.mark.parametrize(("first", "second"), [(a, b) for place, a in enumerate(ROLES) for b in ROLES[place + 1 :]])
def test_images_of_two_sets_are_compared_if_they_must_differ(first: str, second: str) -> None:
    """ID and OOD, or for testing and not; training and validation sets may overlap, and so may near and far sets."""
    scored = {}
    for name, role, numbers in (("one", first, (1, 2, 3, 3)), ("two", second, (3, 4, 2)), ("three", "far", ())):
        digests = np.array([[number] * 16 for number in numbers], np.uint8).reshape(-1, 16)
        source = ActivationsSet(name, len(digests), lambda: (), role=role)
        scored[name] = SetScores(source, np.arange(len(digests)), digests)
    found = duplicates(scored)
    assert found == ([] if (first, second) in MAY_SHARE else [{"sets": ["one", "two"], "images": 2, "near": 0}])

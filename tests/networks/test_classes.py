from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.optimize import linear_sum_assignment
from scipy.stats import binom

from idness.activations.forward import collect
from idness.benchmark import Benchmark, Settings, run
from idness.core.errors import DataError, IdnessWarning
from idness.data import ArraySet, Preprocessing, open_set
from idness.data.open import imagenet_classes, read_classes
from idness.guard import Guard
from idness.guard.calibrate import prepare_guard
from idness.networks.classes import better_order, by_chance, class_names_for, doubt, places_of
from idness.networks.opening import Network, open_network
from tests.cli.running import idness

NUMBERS = tuple(str(number) for number in range(11))
AS_TEXT = tuple(sorted(NUMBERS))  # 0, 1, 10, 2, ... as other programs sort folders
NET = """
import torch
from torch import nn

class Levels(nn.Module):
    preprocessing = {{"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]}}
    order = {order}

    def __init__(self):
        super().__init__()
        levels = (torch.tensor([float(name) for name in self.order]) - 5) / 3
        self.fc = nn.Linear(3, len(levels))
        self.fc.weight.data = (20 * levels)[:, None].repeat(1, 3)
        self.fc.bias.data = -30 * levels ** 2

    def forward(self, images):
        return self.fc(images.mean(dim=(2, 3)))

def make():
    return Levels()
"""


def grey(number: int, seed: int) -> np.ndarray:
    """Draw an image whose brightness is its class."""
    noise = np.random.default_rng([number, seed]).integers(-9, 10, (8, 8, 3))
    return np.clip(255 * (0.5 + 0.25 * (number - 5) / 3) + noise, 0, 255).astype(np.uint8)


def levels(names: tuple[str, ...], each: int = 8) -> ArraySet:
    images = np.stack([grey(int(name), seed) for seed in range(each) for name in names])
    return ArraySet(images, "levels", np.tile(np.arange(len(names)), each), names)


def network(order: tuple[str, ...]) -> torch.nn.Module:
    found: dict[str, type[torch.nn.Module]] = {}
    exec(NET.format(order=order), found)
    return found["Levels"]()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in NUMBERS:
        (tmp_path / "levels" / name).mkdir(parents=True)
        for seed in range(6):
            Image.fromarray(grey(int(name), seed)).save(tmp_path / "levels" / name / f"{seed}.png")
    return tmp_path / "levels"


def test_folders_of_numbers_are_in_the_order_of_numbers(folder: Path) -> None:
    assert open_set(str(folder)).classes == NUMBERS
    found = open_network(network(NUMBERS), images=open_set(str(folder)))
    assert found.class_names == NUMBERS


@pytest.mark.parametrize(
    "order", [AS_TEXT, tuple(reversed(NUMBERS)), ("1", "0", *NUMBERS[2:])], ids=["text", "reversed", "swap"]
)
def test_the_order_that_explains_the_answers_is_taken_and_said(order: tuple[str, ...]) -> None:
    images = levels(NUMBERS, 20)
    with pytest.warns(
        IdnessWarning, match=r"not in the order of the network's outputs: as they come \(0, 1, 2, 3, 4, \.\.\.\)"
    ):
        found = open_network(network(order), images=images)
    assert found.class_names == order
    acts = collect(found, images).acts
    assert acts.labels is not None
    assert (acts.logits.argmax(dim=1) == acts.labels).float().mean() > 0.97


def test_names_that_the_network_or_its_user_gives_are_taken_as_they_are() -> None:
    model = network(AS_TEXT)
    model.class_names = NUMBERS  # wrong, but said
    assert open_network(model, images=levels(NUMBERS)).class_names == NUMBERS
    assert open_network(model, images=levels(NUMBERS), class_names=AS_TEXT).class_names == AS_TEXT


def test_chance_finds_no_order() -> None:
    rng = np.random.default_rng(0)
    for classes in (2, 3, 10, 100):
        names = [f"class {number}" for number in range(classes)]
        for _ in range(50):
            labels, answers = rng.integers(0, classes, (2, 200))
            assert better_order(names, labels, answers) is None
            # An untrained network often says one thing of all images, or one of two.
            assert better_order(names, labels, answers % 2) is None
    labels = np.arange(200) % 10
    weak = np.where(rng.random(200) < 0.3, labels, rng.integers(0, 10, 200))
    assert better_order([f"class {number}" for number in range(10)], labels, weak) is None


def test_an_order_must_explain_half_of_the_mistakes() -> None:
    # 70 % are right as they come; two classes that are taken for each other by turns make 76 % of another order.
    labels = np.repeat(np.arange(5), 50)
    answers = labels.copy()
    for one, other in ((0, 1), (1, 0)):
        answers[50 * one : 50 * one + 32] = other
    names = [f"class {number}" for number in range(5)]
    assert (answers == labels).mean() == pytest.approx(0.744)
    assert better_order(names, labels, answers) is None
    answers[:100] = np.repeat([1, 0], 50)
    assert better_order(names, labels, answers) == (("class 1", "class 0", *names[2:]), 1.0)


def test_right_answers_are_held_against_luck() -> None:
    assert by_chance(6, 60, 10)
    assert by_chance(600, 6_000, 10)
    assert by_chance(750, 6_000, 10)  # an untrained network may well do so, whatever the number of images
    assert not by_chance(1_500, 6_000, 10)
    assert not by_chance(40, 1_000, 1_000)
    assert not by_chance(60, 64, 2)
    assert by_chance(36, 64, 2)
    for classes in (2, 6, 100):
        for count in (1, 20, 64):
            for right in range(count + 1):
                luck = binom.sf(right - 1, count, 1 / classes)
                assert by_chance(right, count, classes) == (luck > 0.01), (right, count, classes)


def plain_order(names: list[str], labels: np.ndarray, answers: np.ndarray) -> tuple[tuple[str, ...], float] | None:
    """The order that fits every other image best, if it explains most of what is wrong in the rest."""
    counts = np.zeros((len(names), len(names)))
    np.add.at(counts, (labels[::2], answers[::2]), 1)
    place = linear_sum_assignment(counts, maximize=True)[1]
    before, share = (labels == answers).mean(), (place[labels[1::2]] == answers[1::2]).mean()
    if (place == np.arange(len(names))).all() or share <= 0.4 + 0.8 / len(names) or share - before <= (1 - before) / 2:
        return None
    return tuple(names[number] for number in np.argsort(place)), float(share)


def test_no_order_is_missed_where_none_is_searched() -> None:
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(400):
        classes, count = int(rng.integers(2, 8)), int(rng.integers(2, 120))
        names = [f"class {number}" for number in range(classes)]
        labels, order = rng.integers(0, classes, count), rng.permutation(classes)
        answers = np.where(rng.random(count) < rng.random(), order[labels], rng.integers(0, classes, count))
        expected = plain_order(names, labels, answers)
        found += expected is not None
        assert better_order(names, labels, answers) == expected
    assert 50 < found < 350


def test_a_network_that_is_right_costs_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.arange(600) % 6
    answers = np.where(np.arange(600) % 13 == 0, 0, labels)
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    assert doubt("x", labels, answers, 6, NUMBERS[:6]) is None


def test_doubt_names_what_to_look_at() -> None:
    labels = np.arange(110) % 11
    assert doubt("x", labels, labels, 11, NUMBERS) is None
    assert doubt("x", labels[:10], labels[:10][::-1], 11) is None  # too few to say
    assert "9.1 % of 110 labelled images are classified rightly, no more than by chance" in str(
        doubt("x", labels, np.zeros_like(labels), 11, NUMBERS)
    )
    told = doubt("x", labels, np.array([AS_TEXT.index(NUMBERS[label]) for label in labels]), 11, NUMBERS)
    assert "100.0 % if they are in the order 0, 1, 10, 2, 3, ..." in str(told)


@pytest.mark.parametrize(
    ("names", "known", "classes", "places"),
    [
        (("b", "a"), ("a", "b", "c"), 3, [1, 0]),
        (("Red_wine", "ice-cream"), ("red wine", "Ice Cream", "tea"), 3, [0, 1]),
        (("Dog", "dog"), ("dog", "Dog"), 2, [1, 0]),
        (("x", "y", "z"), ("a", "b", "c"), 3, [0, 1, 2]),
        (("a", "c", "z"), ("a", "b", "c"), 3, None),
        (("2", "0", "1"), None, 3, [2, 0, 1]),
        (("1", "2", "3"), None, 3, [0, 1, 2]),
        (("x", "y"), ("a", "b", "c"), 3, None),
        (("2", "7"), None, 10, [2, 7]),
        (("2", "10"), None, 10, None),
        (("02", "2"), None, 10, None),
        (("x", "y"), None, 2, [0, 1]),
    ],
)
def test_classes_are_found_by_name_number_or_place(
    names: tuple[str, ...], known: tuple[str, ...] | None, classes: int, places: list[int] | None
) -> None:
    assert places_of(names, known, classes) == places


def test_hugging_face_names_its_classes() -> None:
    model = network(("0", "1"))
    model.config = type("Config", (), {"id2label": {0: "dark", 1: "bright"}})()
    assert open_network(model).class_names == ("dark", "bright")
    model.config.id2label = {0: "LABEL_0", 1: "LABEL_1"}
    assert open_network(model).class_names is None


def test_a_guard_knows_the_right_classes(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET.format(order=AS_TEXT))
    made = idness("calibrate", f"{tmp_path}/net.py:make", "--data", folder, "--method", "msp", "-o", tmp_path / "guard")
    assert made.returncode == 0, made.stderr
    assert "that order is taken" in " ".join(made.stderr.split())
    assert "classifies 100.0 % as their folder says" in " ".join(made.stderr.split())
    scored = idness("score", tmp_path / "guard", folder / "10" / "0.png", folder / "2" / "0.png", "--csv")
    assert [line.split(",")[1] for line in scored.stdout.splitlines()[1:]] == ["10", "2"]


@pytest.mark.parametrize("given", ["network", "argument", "folders"])
def test_verdicts_name_the_class_that_the_network_means(given: str, folder: Path, tmp_path: Path) -> None:
    """Folders that are spelt differently and come in another order than the outputs do."""
    meant = ("Zero", *reversed(NUMBERS[1:]))
    folder.joinpath("0").rename(folder / "zero")
    source = NET.format(order=("0", *meant[1:]))
    if given == "network":
        source = source.replace("    order =", f"    class_names = {meant}\n    order =")
    (tmp_path / "net.py").write_text(source)
    names = meant if given == "argument" else ()
    guard = prepare_guard(f"{tmp_path}/net.py:make", folder, method="msp", class_names=names).guard
    assert guard.class_names == (("zero", *meant[1:]) if given == "folders" else meant)
    assert [guard.judge(folder / name / "0.png").name(0) for name in ("2", "10")] == ["2", "10"]


def test_folders_name_no_classes_without_evidence(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET.format(order=NUMBERS).replace("20 * levels", "0 * levels"))
    guess = prepare_guard(f"{tmp_path}/net.py:make", folder, method="knn(k=1)", any_accuracy=True)
    assert guess.guard.class_names is None
    for name in NUMBERS[4:]:
        (folder / name).rename(tmp_path / f"other {name}")
    (tmp_path / "net.py").write_text(NET.format(order=NUMBERS))
    some = prepare_guard(f"{tmp_path}/net.py:make", folder, method="msp", recall=[0.9]).guard
    assert some.class_names is None


def test_a_benchmark_hears_of_names_and_order(folder: Path) -> None:
    benchmark = Benchmark(
        name="levels", title="Levels", id={"test": "."}, ood_val={"some": "4"}, far={"same": "5"}, base=folder
    )
    found = run(benchmark, network(AS_TEXT), Settings(methods=("msp",)))
    assert found.id_accuracy == 1.0
    assert found.benchmark.classes == list(AS_TEXT)
    assert any("that order is taken" in text for text in found.warnings)
    named = network(AS_TEXT)
    named.class_names = AS_TEXT
    silent = run(benchmark, named, Settings(methods=("msp",)))
    assert (silent.id_accuracy, silent.warnings) == (1.0, [text for text in found.warnings if "order" not in text])
    wrong = run(replace(benchmark, classes=NUMBERS), named, Settings(methods=("msp",)))
    assert any(
        "100.0 % if they are in the order 0, 1, 10, 2, 3, ...; are the classes" in text for text in wrong.warnings
    )


def test_sets_of_another_size_are_refused_before_anything_runs(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET.format(order=NUMBERS))
    (tmp_path / "b.toml").write_text('[id]\ntest = "levels"\n[far]\nlarge = "large"\n')
    (tmp_path / "large").mkdir()
    Image.new("RGB", (30, 40)).save(tmp_path / "large" / "0.png")
    done = idness("bench", tmp_path / "b.toml", "--model", f"{tmp_path}/net.py:make", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "large: images must be 8 x 8 after preprocessing, as those of the other sets are, got 40 x 30" in done.stderr
    assert not (tmp_path / "out").exists()
    opened = open_network(network(NUMBERS), images=open_set(str(folder)))
    with pytest.raises(DataError, match="got 40 x 30"):
        collect(opened, open_set(str(tmp_path / "large")))
    free = Network(opened.split, Preprocessing())  # as a guard judges pictures of any size
    assert len(collect(free, open_set(str(tmp_path / "large"))).acts) == 1


def test_a_folder_of_some_classes_is_taken_by_name(folder: Path, tmp_path: Path) -> None:
    for name in NUMBERS[4:]:
        (folder / name).rename(tmp_path / f"other {name}")
    found = open_network(network(NUMBERS), images=open_set(str(folder)))
    assert collect(found, open_set(str(folder))).acts.labels is not None  # numbers name themselves
    (folder / "0").rename(folder / "zero")
    benchmark = Benchmark(name="b", title="b", id={"test": "levels"}, far={"odd": "other 7"}, base=tmp_path)
    model = network(NUMBERS)
    with pytest.raises(DataError, match=r"id_test: has 4 classes, the network gives 11; write classes = \[\.\.\.\]"):
        run(benchmark, model, Settings(methods=("msp",)))
    model.class_names = NUMBERS
    with pytest.raises(DataError, match=r"3 are names of its classes, 1 are not \(zero\); write classes"):
        run(benchmark, model, Settings(methods=("msp",)))
    (tmp_path / "names.txt").write_text("zero\n" + "\n".join(NUMBERS[1:]) + "\n")
    (tmp_path / "b.toml").write_text(
        'classes = "names.txt"\n[id]\ntest = "levels"\n[ood_val]\na = "other 6"\n[far]\nodd = "other 7"\n'
    )
    assert run(tmp_path / "b.toml", model, Settings(methods=("msp",))).id_accuracy == 1.0


def test_commands_take_the_names_of_classes(folder: Path, tmp_path: Path) -> None:
    (folder / "0").rename(folder / "zero")
    (tmp_path / "names.txt").write_text("zero\n" + "\n".join(NUMBERS[1:]) + "\n")
    (tmp_path / "net.py").write_text(NET.format(order=NUMBERS))
    spec, out = f"{tmp_path}/net.py:make", tmp_path / "guard"
    done = idness(
        "calibrate", spec, "--data", folder, "--classes", tmp_path / "names.txt", "--method", "msp", "-o", out
    )
    assert done.returncode == 0, done.stderr
    assert "classifies 100.0 % as their folder says" in " ".join(done.stderr.split())
    assert Guard.load(out, network(NUMBERS)).class_names == ("zero", *NUMBERS[1:])
    few = idness("doctor", spec, "--data", folder, "--classes", "a,b")
    assert few.returncode == 2
    assert "--classes must name the network's 11 classes, got 2" in few.stderr


def test_imagenets_folders_are_known_by_their_numbers(tmp_path: Path) -> None:
    names = imagenet_classes()
    assert (len(names), names[0], names[999]) == (1000, "n01440764", "n15075141")
    assert read_classes("imagenet") == names
    assert read_classes("b, a") == ("b", "a")
    assert places_of(("n01443537", "n15075141"), None, 1000) == [1, 999]
    assert places_of(("n01443537", "n15075141"), [f"word {number}" for number in range(1000)], 1000) == [1, 999]
    assert places_of(("n01443537", "n15075141"), None, 999) is None
    with pytest.raises(
        DataError, match="classes must be a text file with one name per line, names separated by commas"
    ):
        read_classes("nosuch.txt")


def test_timm_networks_name_their_classes() -> None:
    timm = pytest.importorskip("timm")
    model = timm.create_model("resnet10t", pretrained=False)
    found = class_names_for(model, "timm:resnet10t", 1000)
    assert found is not None
    assert found[0] == "tench, Tinca tinca"
    assert class_names_for(timm.create_model("resnet10t", num_classes=7), "timm:resnet10t", 7) is None

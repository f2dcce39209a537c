from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import binom

from idness.activations.extract import collect
from idness.benchmark import Benchmark, Settings, run
from idness.core.errors import DataError, IdnessWarning, ModelError
from idness.data import ArraySet, Preprocessing, open_set
from idness.data.sets import imagenet_classes, read_classes
from idness.guard import Guard
from idness.networks.open import (
    ModelOptions,
    Network,
    by_chance,
    check_accuracy,
    class_names_for,
    open_network,
    places_of,
)

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


def test_names_that_the_network_or_its_user_gives_are_taken_as_they_are() -> None:
    model = network(AS_TEXT)
    model.class_names = NUMBERS  # wrong, but said
    assert open_network(model, images=levels(NUMBERS)).class_names == NUMBERS
    assert open_network(ModelOptions(model, class_names=AS_TEXT), images=levels(NUMBERS)).class_names == AS_TEXT


def test_right_answers_are_held_against_luck() -> None:
    assert by_chance(750, 6_000, 10)  # an untrained network may well do so, whatever the number of images
    assert not by_chance(1_500, 6_000, 10)
    assert not by_chance(40, 1_000, 1_000)
    for right in range(21):
        assert by_chance(right, 20, 6) == (binom.sf(right - 1, 20, 1 / 6) > 0.01)


@pytest.mark.parametrize(
    ("names", "known", "classes", "places"),
    [
        (("b", "a"), ("a", "b", "c"), 3, [1, 0]),
        (("Red_wine", "ice-cream"), ("red wine", "Ice Cream", "tea"), 3, [0, 1]),
        (("Dog", "dog"), ("dog", "Dog"), 2, [1, 0]),
        (("a\u0301", "o\u0308"), ("\xf6", "\xe1"), 2, [1, 0]),  # as macOS names folders
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


def test_verdicts_name_the_class_that_the_network_means(folder: Path, tmp_path: Path) -> None:
    """Folders that are spelt differently and come in another order than the outputs do."""
    meant = ("Zero", *reversed(NUMBERS[1:]))
    folder.joinpath("0").rename(folder / "zero")
    (tmp_path / "net.py").write_text(NET.format(order=("0", *meant[1:])))
    guard = Guard.for_images(f"{tmp_path}/net.py:make", folder, class_names=meant, method="msp", notes=[])
    assert guard.class_names == meant
    assert [guard.judge(folder / name / "0.png").name(0) for name in ("2", "10")] == ["2", "10"]


def test_folders_name_no_classes_without_evidence(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET.format(order=NUMBERS).replace("20 * levels", "0 * levels"))
    guess = Guard.for_images(f"{tmp_path}/net.py:make", folder, method="knn(k=1)", any_accuracy=True, notes=[])
    assert guess.class_names is None
    for name in NUMBERS[4:]:
        (folder / name).rename(tmp_path / f"other {name}")
    (tmp_path / "net.py").write_text(NET.format(order=NUMBERS))
    some = Guard.for_images(f"{tmp_path}/net.py:make", folder, 0.9, method="msp", notes=[])
    assert some.class_names is None


def test_names_of_folders_that_fit_few_predictions_come_with_a_warning() -> None:
    order = (*NUMBERS[:3], *NUMBERS[4:], NUMBERS[3])
    with pytest.warns(IdnessWarning, match=r"folder's class for only \d+ of 64 images; .* pass class_names="):
        found = open_network(network(order), images=levels(NUMBERS))
    assert found.class_names == NUMBERS


def test_accuracy_at_chance_level_stops_unless_any_will_do() -> None:
    labels = np.arange(110) % 11
    assert check_accuracy("x", labels, labels, 11, any_accuracy=False) == ""
    assert check_accuracy("x", labels[:10], labels[:10][::-1], 11, any_accuracy=False) == ""  # too few to say
    assert "accuracy is 9.1 % on 110 labelled images" in check_accuracy("x", labels, 0 * labels, 11, any_accuracy=True)
    with pytest.raises(ModelError, match="any_accuracy=True to continue"):
        check_accuracy("x", labels, 0 * labels, 11, any_accuracy=False)


def test_sets_of_another_size_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "large").mkdir()
    Image.new("RGB", (30, 40)).save(tmp_path / "large" / "0.png")
    opened = open_network(network(NUMBERS), images=open_set(str(folder)))
    with pytest.raises(DataError, match="large: images must be 8 x 8 after preprocessing, .*, got 40 x 30"):
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
    model.class_names = NUMBERS
    with pytest.raises(DataError, match="not among its class names: zero; set classes"):
        run(benchmark, model, Settings(methods=("msp",)))
    (tmp_path / "names.txt").write_text("zero\n" + "\n".join(NUMBERS[1:]) + "\n")
    (tmp_path / "b.toml").write_text(
        'classes = "names.txt"\n[id]\ntest = "levels"\n[ood_val]\na = "other 6"\n[far]\nodd = "other 7"\n'
    )
    assert run(tmp_path / "b.toml", model, Settings(methods=("msp",))).id_accuracy == 1.0


def test_imagenets_folders_are_known_by_their_numbers(tmp_path: Path) -> None:
    names = imagenet_classes()
    assert (len(names), names[0], names[999]) == (1000, "n01440764", "n15075141")
    assert read_classes("imagenet") == names
    assert read_classes("b, a") == ("b", "a")
    assert places_of(("n01443537", "n15075141"), None, 1000) == [1, 999]
    assert places_of(("n01443537", "n15075141"), [f"word {number}" for number in range(1000)], 1000) == [1, 999]
    assert places_of(("n01443537", "n15075141"), None, 999) is None
    with pytest.raises(DataError, match="classes must be a text file with one name per line"):
        read_classes("nosuch.txt")


def test_timm_networks_name_their_classes() -> None:
    model = pytest.importorskip("timm").create_model("resnet10t", pretrained=False)
    found = class_names_for(model, "timm:resnet10t", 1000)
    assert found is not None
    assert found[0] == "tench, Tinca tinca"
    assert class_names_for(model, "timm:resnet10t", 7) is None

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from idness import methods
from idness.core.errors import OptionError
from idness.core.types import Activations, Head
from idness.detectors.detector import Detector
from idness.detectors.registry import build, parse, rows
from idness.metrics import auroc
from idness.selection.search import Row, choose, wanted_rows
from tests.worlds import make_world


@dataclass(kw_only=True)
class Flat(Detector):
    """Give scores that depend on an option in a known way."""

    grid = {"power": (1, 2, 3)}

    power: int = 1

    def rate(self, acts: Activations) -> Tensor:
        return acts.features[:, self.power - 1]


def tiny(values: list[list[float]]) -> Activations:
    features = torch.tensor(values, dtype=torch.float32)
    return Activations(features, torch.zeros(len(values), 2))


HEAD = Head(torch.zeros(2, 3))


def test_first_best_wins_and_defaults_come_first() -> None:
    # Of the three settings the second and third are equally good, the first is worse.
    val, ood = tiny([[0, 1, 2], [1, 2, 4]]), tiny([[0, 0, 1]])
    chosen, failed = choose({"flat": Row(Flat())}, HEAD, None, val, {"u": ood})
    assert not failed
    choice = chosen["flat"]
    assert choice.detector.options() == {"power": 2}
    assert choice.chosen_by == "validation"
    assert [(options["power"], value) for options, value in choice.tried] == [(1, 0.75), (2, 1.0), (3, 1.0)]
    same = tiny([[1, 1, 1], [2, 2, 4]])
    kept = choose({"flat": Row(Flat(power=2))}, HEAD, None, same, {"u": tiny([[0, 0, 0]])})[0]["flat"]
    assert kept.detector.options() == {"power": 2}  # its own setting is as good as any


def test_settings_with_equal_scores_are_one_trial() -> None:
    val, ood = tiny([[1, 1, 2], [2, 2, 4]]), tiny([[0, 0, 1]])
    choice = choose({"flat": Row(Flat())}, HEAD, None, val, {"u": ood})[0]["flat"]
    assert [options["power"] for options, _ in choice.tried] == [1, 3]
    world = make_world()
    gen = choose({"gen": Row(build("gen"))}, world.head, world.train, world.val, {"u": world.ood})[0]["gen"]
    assert len(gen.tried) == 7  # seven gammas; with five classes every m is the same


def test_a_method_that_fails_on_half_of_the_images_is_still_chosen_on_all() -> None:
    world, wanted = make_world(), {"tempscale": Row(build("tempscale"))}
    half = replace(world.val[:9], labels=None)  # which tempscale needs
    found, failed = choose(wanted, world.head, world.train, world.val, {"u": world.ood}, half=half)
    assert (found["tempscale"].on_half, failed) == (None, {})


def test_mean_over_validation_sets_decides() -> None:
    val = tiny([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]])
    many = {"a": tiny([[0, 0, 3.0]]), "b": tiny([[3.0, 1.5, 3.0]]), "c": tiny([[3.0, 0, 0]])}
    choice = choose({"flat": Row(Flat())}, HEAD, None, val, many)[0]["flat"]
    assert choice.detector.options() == {"power": 2}
    assert choice.auroc == pytest.approx((1 + 0.5 + 1) / 3)


def test_without_validation_everything_keeps_its_default() -> None:
    world = make_world()
    chosen, failed = choose(wanted_rows(), world.head, world.train)
    assert not failed
    for name, choice in chosen.items():
        assert choice.chosen_by == "default"
        assert choice.detector.options() == rows()[name].options()
        assert choice.detector.fitted


def test_who_knows_validation_images_by_heart_is_not_compared_on_them() -> None:
    world = make_world(classes=60, count=60)
    # More ID images in place of OOD images: whoever tells them from the validation images has learned the latter.
    more = {"more of the same": world.test}
    choice = choose({"klm": Row(build("klm"))}, world.head, world.train, world.val, more)[0]["klm"]
    assert choice.auroc == pytest.approx(0.5, abs=0.1)
    # The row itself then learns from them, as everywhere.
    assert torch.equal(
        choice.detector.score(world.test), build("klm").fit(world.head, world.train, val=world.val).score(world.test)
    )
    # Without other images to learn from it is left out of the comparison, not out of the table.
    alone = choose({"klm": Row(build("klm"))}, world.head, None, world.val, more)[0]["klm"]
    assert alone.auroc is None
    assert alone.detector.fitted


def test_settings_and_methods_that_cannot_be_fitted_are_dropped_with_a_note() -> None:
    world = make_world(count=30)  # 90 training images
    choice = choose({"knn": Row(build("knn"))}, world.head, world.train, world.val, {"u": world.ood})[0]["knn"]
    assert {options["k"] for options, _ in choice.tried} == {1, 5, 10, 50}
    assert len(choice.dropped) == 4
    assert "knn(k=1000): KNN: k must be at most" in choice.dropped[-1]
    chosen, failed = choose(wanted_rows(["msp", "mds"]), world.head)
    assert set(chosen) == {"msp"}
    assert "training images" in failed["mds"]


def test_every_row_is_chosen_by_its_validation_auroc() -> None:
    world = make_world()
    chosen, failed = choose(wanted_rows(), world.head, world.train, world.val, {"u": world.ood})
    assert not failed
    for choice in chosen.values():
        value = auroc(choice.detector.score(world.val), choice.detector.score(world.ood))
        assert choice.auroc == pytest.approx(value, abs=1e-12)
        assert choice.auroc == max(value for _, value in choice.tried)


def test_names_of_methods() -> None:
    assert list(wanted_rows(["Ash"])) == ["ash-s", "ash-p", "ash-b"]
    assert set(wanted_rows()) == set(rows())
    assert "odin" not in wanted_rows()  # two passes of the network are run only where asked for
    assert list(wanted_rows(["odin", "ebo", "odin(eps=0.1)"])) == ["odin", "ebo", "odin(eps=0.1)"]


@dataclass(kw_only=True)
class Longest(Detector):
    grid = {"power": (1.0, 3.0)}

    power: float = 2.0

    def rate(self, acts: Activations) -> Tensor:
        return acts.features.norm(p=self.power, dim=1)


class Scale(Longest):
    """Takes the name of one of ours."""


def test_classes_and_objects_are_rows() -> None:
    world = make_world()
    mine = Longest(power=5.0)
    wanted = wanted_rows(["scale(percentile=65)", Longest, mine, Scale, methods.KNN(k=3)])
    assert list(wanted) == ["scale(percentile=65)", "longest", "longest(power=5)", f"{__name__}:Scale", "knn(k=3)"]
    chosen, failed = choose(wanted, world.head, world.train, world.val, {"u": world.ood})
    assert not failed
    assert chosen["scale(percentile=65)"].chosen_by == "given"  # and not searched
    assert chosen["scale(percentile=65)"].detector.options()["percentile"] == 65
    assert chosen["longest"].chosen_by == "validation"
    assert [options for options, _ in chosen["longest"].tried] == [{"power": 2.0}, {"power": 1.0}, {"power": 3.0}]
    assert chosen["longest(power=5)"].chosen_by == "given"
    assert not mine.fitted  # theirs is left as it was
    assert list(wanted_rows([methods.Ash])) == ["ash-s", "ash-p", "ash-b"]


SCRIPT = """
from dataclasses import dataclass

from beside_the_method import FACTOR
from idness.detectors.detector import Detector

@dataclass(kw_only=True)
class Loudest(Detector):
    power: float = 2.0

    def rate(self, acts):
        return FACTOR * acts.logits.norm(p=self.power, dim=1)

ready = Loudest(power=7.0)
number = 7
"""


def test_a_class_and_an_object_of_a_file_are_rows(tmp_path: Path) -> None:
    (tmp_path / "beside_the_method.py").write_text("FACTOR = 2.0\n")
    (tmp_path / "mine.py").write_text(SCRIPT)
    file, world = tmp_path / "mine.py", make_world()
    wanted = wanted_rows([f"{file}:Loudest", f"{file}:Loudest(power=3)", f"{file}:ready"])
    assert {name: row.given for name, row in wanted.items()} == {
        "loudest": False, "loudest(power=3)": True, "loudest(power=7)": True,
    }  # fmt: skip
    chosen, _ = choose(wanted, world.head, world.train)
    scores = chosen["loudest(power=3)"].detector.score(world.test)
    assert torch.allclose(scores, 2 * world.test.logits.norm(p=3, dim=1))
    with pytest.raises(
        OptionError, match=r"a method must be a dataclass that extends Detector, or an instance of one, got 7"
    ):
        wanted_rows([f"{file}:number"])
    with pytest.raises(OptionError, match=r"Loudest: unknown option 'pow'; it takes power"):
        wanted_rows([f"{file}:Loudest(pow=3)"])
    with pytest.raises(OptionError, match=r"names of methods must be unique, got 'loudest' twice"):
        wanted_rows([f"{file}:Loudest", f"{file}:Loudest"])


def test_no_text_but_a_persons_own_runs_a_file(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text(f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n")
    for text in (f"{tmp_path}/evil.py:X", f"chain(steps='{tmp_path}/evil.py:X')"):
        with pytest.raises(OptionError, match="methods in Python files can only be compared"):
            parse(text)
    assert not (tmp_path / "ran").exists()

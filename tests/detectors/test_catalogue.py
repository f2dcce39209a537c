from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint

import pytest
import torch

from idness.core.errors import IdnessError, UnknownNameError
from idness.detectors import catalogue, registry
from tests.third_party import Norm, StrongScale
from tests.worlds import make_world

Offer = Callable[..., None]


def test_every_method_is_listed_as_its_class_says():
    """The catalogue reads the source; the classes themselves say the same."""
    listed = {entry.name: entry for entry in catalogue.catalogue()}
    assert list(listed) == sorted(registry.available())
    for name, entry in listed.items():
        cls = registry.available()[name]
        assert entry == catalogue.describe(name, cls, sys.modules[cls.__module__].__doc__)
        assert entry.options == registry.build(name).options()
        assert set(entry.rows) == {row for row, made in registry.rows(costly=True).items() if made.name == name} - {
            name
        }
        assert entry.summary.endswith(".")
        assert entry.paper
    assert listed["scale"].paper.startswith("SCALE -- Xu et al.")
    assert listed["tempscale"].needs_val
    assert (listed["scale"].passes, listed["odin"].passes) == ("1", "2 + 1")
    assert listed["ash"].rows["ash-b"] == {"variant": "b"}


@pytest.mark.parametrize("name", sorted(registry.available()))
def test_every_method_has_a_formula_and_an_assumption_of_its_own(name):
    convert = pytest.importorskip("latex2mathml.converter").convert
    cls = registry.available()[name]
    assert {"formula", "assumes"} <= set(vars(cls)), "inherited from another method"
    drawn = re.sub(r"<[^>]+>", "", convert(cls.formula))
    assert "\\" not in drawn, f"unknown to MathML: {drawn}"
    assert "|" not in cls.formula  # ends a cell of the table
    assert not cls.assumes.endswith(".")


def test_every_method_of_the_paper_is_there():
    wanted = ["msp", "mls", "ebo", "tempscale", "gen", "mds", "rmds", "knn", "react", "dice", "ash", "scale", "chain"]
    assert set(wanted) <= set(registry.available())
    assert {"ash-s", "ash-p", "ash-b"} <= set(registry.rows())


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> Iterator[Offer]:
    """Install a third party's methods, as its package's metadata would."""

    def offer(**targets: str) -> None:
        points = [EntryPoint(name.replace("_", "-"), target, registry.GROUP) for name, target in targets.items()]
        for module in (registry, catalogue):
            monkeypatch.setattr(module, "entry_points", lambda group: points)
        registry.look_again()

    yield offer
    registry.look_again()
    for cls in (Norm, StrongScale):
        if "listed_as" in vars(cls):
            del cls.listed_as


def test_a_third_partys_methods_are_included_under_the_names_they_chose(offered: Offer):
    offered(feature_norm="tests.third_party:Norm", strong="tests.third_party:StrongScale")
    assert {"feature-norm", "strong"} <= set(registry.rows())
    detector = registry.parse("feature-norm(power=1.0)")
    assert (detector.name, detector.label(), detector.options()) == (
        "feature-norm",
        "feature-norm(power=1)",
        {"power": 1.0},
    )
    norm, strong = catalogue.catalogue()[-2:]
    assert (norm.name, norm.summary, norm.signature) == (
        "feature-norm", "Take the length of the features.", "power=2.0",
    )  # fmt: skip
    assert strong.options == {"readout": "energy", "percentile": 85.0}
    assert strong.assumes_nonnegative


def test_a_third_partys_method_is_found_by_the_names_in_files(offered: Offer):
    before = Norm(power=3.0).config()  # as written where nothing looked for methods
    offered(Feature_Norm="tests.third_party:Norm")
    assert "Feature-Norm" in registry.available()
    after = Norm(power=3.0).config()
    assert (before["method"], after["method"]) == ("norm", "Feature-Norm")
    for config in (before, after):
        assert registry.build(config["method"], **config["options"]) == Norm(power=3.0)
    assert registry.build("feature-norm") == Norm()


def test_a_subclass_is_not_called_as_its_parent(offered: Offer):
    offered(theirs="tests.third_party:Norm")
    child = type("Child", (registry.available()["theirs"],), {})
    assert child().name == "child"


def test_what_a_subclass_of_scale_writes_counts():
    world = make_world()
    once, twice = registry.build("scale").fit(world.head), StrongScale().fit(world.head)
    assert not torch.allclose(once.score(world.test), twice.score(world.test))


def test_a_variants_options_can_be_set_and_what_is_given_wins():
    assert registry.build("ash-b", percentile=70.0).options()["variant"] == "b"
    assert registry.parse("ASH-B(variant=p)").options()["variant"] == "p"


def test_packages_are_looked_at_once(offered: Offer, monkeypatch: pytest.MonkeyPatch):
    offered()
    registry.build("msp")
    monkeypatch.setattr(registry, "entry_points", lambda group: pytest.fail("looked again"))
    registry.build("msp")
    registry.available().clear()  # a copy: what a caller does with it is no matter
    assert registry.build("msp").name == "msp"


@pytest.mark.parametrize(
    ("name", "target", "message"),
    [
        ("Scale", "tests.third_party:Norm", "must have a unique name, got 'Scale'"),
        ("theirs", "tests.third_party:not_a_method", "must be a dataclass that extends Detector"),
        ("theirs", "tests.third_party:Helper", "must be a dataclass that extends Detector"),
        ("theirs", "tests.third_party:Missing", "must name a class that can be imported"),
        ("theirs", "tests.no_such_file:Norm", "must name a class that can be imported"),
    ],
)
def test_a_third_partys_mistake_is_told(offered: Offer, name: str, target: str, message: str):
    offered(**{name: target})
    with pytest.raises(IdnessError, match=f"entry point '{name}' of idness.methods {message}.*fix or uninstall it"):
        registry.available()


def test_unknown_methods_are_told_once_each(offered: Offer):
    offered()
    with pytest.raises(UnknownNameError) as told:
        registry.build("xyzzy")
    listed = str(told.value).partition("known are ")[2].split(", ")
    assert listed == sorted(registry.rows(costly=True))

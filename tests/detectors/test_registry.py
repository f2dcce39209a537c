from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint

import pytest

from idness.core.errors import IdnessError, UnknownNameError
from idness.detectors import registry
from tests.third_party import Norm, StrongScale

Offer = Callable[..., None]


@pytest.mark.parametrize("name", registry.available())
def test_every_method_describes_itself(name):
    convert = pytest.importorskip("latex2mathml.converter").convert
    cls, about = registry.available()[name], registry.describe_method(name)
    assert {"formula", "assumes"} <= set(vars(cls)), "inherited from another method"
    drawn = re.sub(r"<[^>]+>", "", convert(cls.formula))
    assert "\\" not in drawn, f"unknown to MathML: {drawn}"
    assert "|" not in cls.formula  # ends a cell of the table
    assert not cls.assumes.endswith(".")
    assert about["summary"].endswith(".")
    assert about["paper"]
    assert json.loads(json.dumps(about))["options"] == registry.build(name).options()


def test_built_in_methods_are_sorted_and_those_of_the_paper_are_included():
    assert list(registry.available()) == sorted(registry.available())
    wanted = ["msp", "mls", "ebo", "tempscale", "gen", "mds", "rmds", "knn", "react", "dice", "ash", "scale", "chain"]
    assert set(wanted) <= set(registry.available())
    assert {"ash-s", "ash-p", "ash-b"} <= set(registry.rows())
    assert set(registry.rows(costly=True)) - set(registry.rows()) == {"odin", "adascale-a", "adascale-l"}
    assert registry.describe_method("scale")["paper"].startswith("SCALE -- Xu et al.")
    assert (registry.build("scale").passes(), registry.build("odin").passes()) == ("1", "2 + 1")


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> Iterator[Offer]:
    """Install the methods of a plug-in, as the metadata of its package would."""

    def offer(**targets: str) -> None:
        points = [EntryPoint(name.replace("_", "-"), target, registry.GROUP) for name, target in targets.items()]
        monkeypatch.setattr(registry, "entry_points", lambda group: points)
        registry.available.cache_clear()

    yield offer
    registry.available.cache_clear()
    for cls in (Norm, StrongScale):
        if "listed_as" in vars(cls):
            del cls.listed_as


def test_methods_of_a_plug_in_are_found_by_their_names(offered: Offer):
    before = Norm(power=3.0).config()  # as written before plug-ins were searched
    offered(Feature_Norm="tests.third_party:Norm", strong="tests.third_party:StrongScale")
    assert {"Feature-Norm", "strong"} <= set(registry.rows())
    assert registry.parse("feature-norm(power=1.0)").label() == "Feature-Norm(power=1)"
    after = Norm(power=3.0).config()
    assert (before["method"], after["method"]) == ("norm", "Feature-Norm")
    for config in (before, after):
        assert registry.build(config["method"], **config["options"]) == Norm(power=3.0)
    norm, strong = registry.describe_method("Feature-Norm"), registry.describe_method("strong")
    assert (norm["summary"], norm["options"]) == ("Take the length of the features.", {"power": 2.0})
    assert strong["options"] == {"readout": "energy", "percentile": 85.0}
    assert strong["assumes_nonnegative"]
    child = type("Child", (registry.available()["Feature-Norm"],), {})
    assert child().name == "child"  # not that of its parent


def test_options_of_a_variant_can_be_set_and_explicit_options_win():
    assert registry.build("ash-b", percentile=70.0).options()["variant"] == "b"
    assert registry.parse("ASH-B(variant=p)").options()["variant"] == "p"


@pytest.mark.parametrize(
    ("name", "target", "message"),
    [
        ("Scale", "tests.third_party:Norm", "must have a unique name, got 'Scale'"),
        ("theirs", "tests.third_party:not_a_method", "must be a dataclass that extends Detector"),
        ("theirs", "tests.third_party:Helper", "must be a dataclass that extends Detector"),
        ("theirs", "tests.third_party:Missing", "cannot be imported"),
        ("theirs", "tests.no_such_file:Norm", "cannot be imported"),
    ],
)
def test_mistakes_of_a_plug_in_are_reported(offered: Offer, name: str, target: str, message: str):
    offered(**{name: target})
    with pytest.raises(IdnessError, match=f"entry point '{name}' of idness.methods: {message}.*fix or uninstall it"):
        registry.available()


def test_an_unknown_method_lists_each_known_one_once(offered: Offer):
    offered()
    with pytest.raises(UnknownNameError) as raised:
        registry.build("xyzzy")
    listed = str(raised.value).partition("known are ")[2].split(", ")
    assert listed == sorted(registry.rows(costly=True))

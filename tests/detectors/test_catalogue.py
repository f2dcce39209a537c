from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from idness.core.errors import IdnessError
from idness.detectors import catalogue, registry


def test_what_is_read_from_sources_is_what_the_classes_say():
    read = {entry.name: entry for entry in catalogue.catalogue()}
    classes = registry.available()
    assert set(read) == set(classes)
    for name, cls in classes.items():
        assert read[name] == catalogue.describe(cls)


def test_every_method_of_the_paper_is_there():
    wanted = ["msp", "mls", "ebo", "tempscale", "gen", "mds", "rmds", "knn", "react", "dice", "ash", "scale", "chain"]
    assert set(wanted) <= set(registry.available())
    assert {"ash-s", "ash-p", "ash-b"} <= set(registry.rows())


@pytest.fixture
def offered(monkeypatch):
    """Install a third party's method, as its package's metadata would."""

    def offer(target: str) -> None:
        points = [EntryPoint("theirs", target, registry.GROUP)]
        for module in (registry, catalogue):
            monkeypatch.setattr(module, "entry_points", lambda group: points)

    return offer


def test_a_third_partys_method_is_included(offered):
    offered("tests.third_party:Norm")
    assert "norm" in registry.rows()
    assert registry.build("norm", power=1.0).options() == {"power": 1.0}
    entry = catalogue.catalogue()[-1]
    assert (entry.name, entry.summary, entry.signature) == ("norm", "Take the length of the features.", "power=2.0")


def test_a_third_partys_mistake_is_told(offered):
    offered("tests.third_party:Scale")
    with pytest.raises(IdnessError, match="must have a name of its own, got 'scale'"):
        registry.available()
    offered("tests.third_party:not_a_method")
    with pytest.raises(IdnessError, match="must be a dataclass that extends Detector"):
        registry.available()

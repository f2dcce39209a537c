from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from idness.benchmark.evaluate import Scorer, group_metrics, set_metrics
from idness.core.types import Activations, Head
from idness.data import ActivationsSet
from idness.detectors.detector import Detector, Enhancer
from idness.detectors.registry import build
from idness.metrics import NAMES, all_metrics
from idness.selection.search import Choice
from tests.worlds import World, make_world


@dataclass(kw_only=True)
class Exchanged(Enhancer):
    """Exchange the first two classes of the head, so that the edited network is wrong where the plain one was right."""

    def edit(self, head: Head) -> Head:
        order = [1, 0, *range(2, head.classes)]
        return Head(head.weight[order], head.offset[order])


def shards(acts: Activations, size: int = 64, count: int | None = None) -> ActivationsSet:
    """Cut activations as the store does; each image's hash is its place."""
    places = torch.arange(len(acts)).split(size)
    cut = [replace(acts[p], index=p, hashes=p[:, None].to(torch.uint8).expand(-1, 16)) for p in places]
    return ActivationsSet("test", count or len(acts), lambda: cut, role="id_test")


def scorer(world: World, **detectors: Detector) -> Scorer:
    fitted = {row: detector.fit(world.head, world.train, val=world.val) for row, detector in detectors.items()}
    return Scorer({row: Choice(detector, "given") for row, detector in fitted.items()})


def test_the_shaped_accuracy_is_that_of_the_edited_network() -> None:
    world = make_world()
    found = scorer(world, swap=Exchanged(), msp=build("msp"), scale=build("scale")).score(shards(world.test))
    labels = world.test.labels
    assert labels is not None
    right = world.test.logits.argmax(dim=1) == labels
    assert found.accuracy == pytest.approx(float(right.double().mean()))
    assert found.accuracy > 0.9
    # Right images of the first two classes become wrong, those it took for one another become right.
    exchanged = torch.tensor([1, 0, 2, 3, 4])[world.test.logits.argmax(dim=1)]
    assert found.shaped_accuracy("swap") == pytest.approx(float((exchanged == labels).double().mean()))
    assert found.shaped_accuracy("swap") < 0.65
    assert found.shaped_accuracy("msp") == found.accuracy  # it edits nothing
    assert found.shaped_accuracy("scale") is not None


def test_a_set_scored_in_shards_is_the_set_scored_at_once() -> None:
    world = make_world()
    found = scorer(world, ebo=build("ebo")).score(shards(world.test, 23, 500))
    assert np.allclose(found.scores["ebo"], torch.logsumexp(world.test.logits, dim=1).numpy(), atol=1e-5)
    assert found.index.tolist() == list(range(len(world.test)))
    assert found.predicted.tolist() == world.test.logits.argmax(dim=1).tolist()
    assert found.digests[:, 0].tolist() == list(range(len(world.test)))


def draw(
    rng: np.random.Generator, n: int = 150, sizes: tuple[int, ...] = (60, 100)
) -> tuple[np.ndarray, list[np.ndarray]]:
    return rng.normal(1.5, 1, n), [rng.normal(0.3 * place, 1, size) for place, size in enumerate(sizes)]


def test_means_are_plain_and_sets_have_their_own_values() -> None:
    ids, oods = draw(np.random.default_rng(0))
    parts = [set_metrics(ids, scores) for scores in oods]
    group = group_metrics(ids, oods, parts)
    for name in NAMES:
        values = [all_metrics(ids, scores)[name] for scores in oods]
        assert [getattr(part, name) for part in parts] == values
        assert getattr(group, name) == pytest.approx(np.mean(values), abs=1e-15)
    for name, (low, high) in group.intervals.items():
        assert 0 <= low <= getattr(group, name) <= high <= 1
    single = group_metrics(ids, oods[:1], parts[:1])
    assert single.intervals == parts[0].intervals

"""What a detector's class may leave out, and what fitting and scoring several at once must keep apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import pytest
import torch
from torch import Tensor

from idness.core.errors import InputError, NotFittedError, OptionError
from idness.core.types import SUITS_SIGNED, Activations, Head
from idness.detectors.detector import Detector, score_many
from idness.detectors.registry import build
from idness.methods import KNN, MDS, ReAct, Scale, TempScale
from tests.worlds import make_world

WORLD = make_world()


@dataclass(kw_only=True)
class Shared(Detector):
    """Write the hooks for many only."""

    power: float = 1.0

    @classmethod
    def learn_many(cls, detectors: Sequence[Self], head: Head, train: Any, val: Any) -> None:
        mean = train.features.mean(dim=0)
        for detector in detectors:
            detector.mean_ = mean

    @classmethod
    def rate_many(cls, detectors: Sequence[Self], acts: Activations) -> list[Tensor]:
        distance = (acts.features - detectors[0].mean_).norm(dim=1)
        return [-(distance**detector.power) for detector in detectors]


def test_hooks_for_many_serve_one_as_well():
    detector = Shared(power=2.0).fit(WORLD.head, WORLD.train)
    slow = -((WORLD.test.features - WORLD.train.features.mean(dim=0)).norm(dim=1) ** 2.0)
    torch.testing.assert_close(detector.rate(WORLD.test), slow)
    torch.testing.assert_close(detector.score(WORLD.test), slow)


def test_a_subclass_is_not_passed_over_by_its_parents_shared_work():
    @dataclass(kw_only=True)
    class Turned(Shared):
        """Turn the scores around, and learn something else."""

        def learn(self, head: Head, train: Activations, val: Activations) -> None:
            self.mean_ = torch.zeros(head.width)

        def rate(self, acts: Activations) -> Tensor:
            return (acts.features - self.mean_).norm(dim=1)

    expected = WORLD.test.features.norm(dim=1)
    torch.testing.assert_close(Turned().fit(WORLD.head, WORLD.train).score(WORLD.test), expected)


@pytest.mark.parametrize("hook", ["shape", "edit", "shaped_logits"])
def test_a_subclass_of_scale_that_edits_otherwise_is_heard(hook):
    twice = Head(WORLD.head.weight * 2, WORLD.head.bias)
    change, logits = {
        "shape": (lambda self, features: features * 2, WORLD.head(WORLD.test.features * 2)),
        "edit": (lambda self, head: twice, twice(Scale(percentile=85.0).shape(WORLD.test.features))),
        "shaped_logits": (lambda self, acts: acts.logits * 2, WORLD.test.logits * 2),
    }[hook]
    doubled = dataclass(kw_only=True)(type("Doubled", (Scale,), {hook: change}))
    scores = doubled().fit(WORLD.head).score(WORLD.test)
    torch.testing.assert_close(scores, logits.logsumexp(dim=1), rtol=1e-4, atol=1e-4)


def test_an_option_keeps_its_kind_where_a_subclass_changes_its_default():
    @dataclass(kw_only=True)
    class Higher(Scale):
        percentile: float = 99.0

    assert Higher().percentile == 99.0
    with pytest.raises(OptionError, match="Higher: percentile must be in"):
        Higher(percentile=300.0)


def test_what_is_not_learned_yet_is_told():
    with pytest.raises(NotFittedError, match="ReAct: is not fitted; call fit"):
        ReAct().shape(WORLD.test.features)
    assert not hasattr(ReAct(), "clip_")
    assert hasattr(ReAct().fit(WORLD.head, WORLD.train), "clip_")
    with pytest.raises(AttributeError, match="ReAct has no attribute 'clap_'"):
        _ = ReAct().fit(WORLD.head, WORLD.train).clap_
    with pytest.raises(AttributeError, match="ReAct has no attribute 'percentil'"):
        _ = ReAct().percentil


def test_detectors_that_learned_apart_are_not_scored_as_if_together():
    learned = [KNN(k=1).fit(WORLD.head, acts) for acts in (WORLD.train, WORLD.val)]
    loaded = [KNN(k=1).load_state(WORLD.head, one.state()) for one in learned]
    first, second, *others = score_many([*learned, *loaded], WORLD.test)
    assert not torch.equal(first, second)
    for scores, expected, one in zip((first, second), others, learned, strict=True):
        assert torch.equal(scores, expected)
        assert torch.equal(scores, one.score(WORLD.test))


def test_a_fit_that_fails_leaves_nothing_old_behind():
    detector = KNN(k=50).fit(WORLD.head, WORLD.train)
    with pytest.raises(InputError, match="k must be at most the number of training images"):
        detector.fit(WORLD.head, WORLD.train[:10])
    assert not detector.fitted
    with pytest.raises(NotFittedError):
        detector.score(WORLD.test)


def test_labels_are_asked_of_the_images_that_are_learned_from():
    bare = [Activations(acts.features, acts.logits) for acts in (WORLD.train, WORLD.val)]
    assert MDS().fit(WORLD.head, WORLD.train, val=bare[1]).fitted
    with pytest.raises(InputError, match="MDS: train must have labels"):
        MDS().fit(WORLD.head, bare[0], val=WORLD.val)
    assert TempScale().fit(WORLD.head, bare[0], val=WORLD.val).fitted
    with pytest.raises(InputError, match="TempScale: val must have labels"):
        TempScale().fit(WORLD.head, WORLD.train, val=bare[1])


def test_methods_that_warnings_recommend_for_signed_features_take_them():
    for name in SUITS_SIGNED.split(", "):
        assert not build(name).assumes_nonnegative


@dataclass(kw_only=True)
class First(Detector):
    """Give the logarithm of the first feature: NaN below zero, minus infinity at zero."""

    def rate(self, acts: Activations) -> Tensor:
        return acts.features[:, 0].double().log() / acts.features[:, 1]


def test_a_score_that_is_no_number_is_the_least_in_distribution() -> None:
    features = torch.tensor([[-1.0, 1.0], [0.0, 1.0], [1e-30, 1.0], [1.0, 1.0], [1e30, 1.0], [2.0, 0.0]])
    scores = First().fit(Head(torch.zeros(2, 2))).score(Activations(features, torch.zeros(6, 2)))
    assert scores.isfinite().all()
    nan, lowest, *finite, highest = scores.tolist()
    assert nan == lowest < min(finite)
    assert finite == sorted(finite)
    assert highest > max(finite)

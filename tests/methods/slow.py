"""What several methods' references have in common, written out for one image at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from idness.detectors.detector import Detector
from tests.worlds import World


def energy(logits: Sequence[float]) -> float:
    return max(logits) + math.log(sum(math.exp(z - max(logits)) for z in logits))


def softmax(logits: Sequence[float]) -> list[float]:
    return [math.exp(z - energy(logits)) for z in logits]


def ratio(row: Sequence[float], percentile: float) -> float:
    kept = len(row) - round(len(row) * percentile / 100)
    return sum(row) / sum(sorted(row, reverse=True)[:kept])


def check(detector: Detector, world: World, expected: Callable[[Tensor, list[float]], float], **close: Any) -> None:
    """Compare the score of each test image with that of a function of its features and logits."""
    acts = world.seen_by(detector).test
    rows = zip(acts.features.double(), acts.logits.double().tolist(), detector.score(acts).tolist(), strict=True)
    for features, logits, score in rows:
        assert score == pytest.approx(expected(features, logits), **{"rel": 1e-4, **close})


def check_shaped(
    detector: Detector, world: World, shape: Callable[[list[float]], list[float]], *, weight: Any = None, **close: Any
) -> None:
    """The same for a method whose score is the energy of the logits of edited features, or of an edited weight."""
    weight = (world.head.weight if weight is None else torch.as_tensor(weight)).double()

    def expected(features: Tensor, _: list[float]) -> float:
        shaped = torch.tensor(shape(features.tolist()), dtype=torch.double)
        return energy((weight @ shaped + world.head.offset).tolist())

    check(detector, world, expected, **close)

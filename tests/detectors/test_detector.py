from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from idness.core.types import Activations, Head
from idness.detectors.detector import Detector


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

"""Relation -- Kim et al., "Neural Relation Graph: A Unified Framework for Identifying Label Noise and Outlier Data", NeurIPS 2023."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from idness.core.options import positive
from idness.core.types import Activations, Head
from idness.detectors.detector import Detector
from idness.detectors.kernels import row_blocks, unit

CUT = 0.03
"""Relations up to this value are ignored, as in the authors' code."""


@dataclass(kw_only=True)
class Relation(Detector):
    """Mean relation of an image to the training images, in features and in probabilities.

    The relation of two images is max(0, cosine of their features) times the inner product of their probabilities.

    Args:
        power: exponent of relations before they are averaged; 1 is best for OOD detection in the paper.
    """

    formula = r"\frac{1}{N} \sum_i \left(\max(0, \langle \bar a, \bar a_i \rangle)\, \langle p, p_i \rangle\right)^{s}"
    assumes = "ID images are near many training images of their class"
    needs_train = True
    grid = {"power": (1.0, 2.0, 4.0, 6.0, 8.0)}

    power: float = positive(1.0)

    @classmethod
    def learn_many(cls, detectors: Sequence[Self], head: Head, train: Activations, val: Activations) -> None:
        bank, probabilities = unit(train.features), torch.softmax(train.logits, dim=1)
        for detector in detectors:
            detector.bank_, detector.probabilities_ = bank, probabilities

    @classmethod
    def rate_many(cls, detectors: Sequence[Self], acts: Activations) -> list[Tensor]:
        # The products serve every power. Means instead of the paper's sums have the same order.
        features, probabilities = unit(acts.features), torch.softmax(acts.logits, dim=1)
        powers = [detector.power for detector in detectors]
        size = len(detectors[0].bank_)
        parts = zip(row_blocks(features, size), row_blocks(probabilities, size), strict=True)
        means = [detectors[0]._means(near, likely, powers) for near, likely in parts]
        return list(torch.cat(means).unbind(dim=1))

    def _means(self, features: Tensor, probabilities: Tensor, powers: Sequence[float]) -> Tensor:
        """Return the mean relations with the training images for several powers (N, P)."""
        relations = (features @ self.bank_.T).clamp_(min=0).mul_(probabilities @ self.probabilities_.T)
        kept = torch.threshold_(relations, CUT, 0.0)
        return torch.stack([_powered(kept, power).mean(dim=1) for power in powers], dim=1)


def _powered(values: Tensor, power: float) -> Tensor:
    """Return powers of values; squares are far cheaper than general powers."""
    while power % 2 == 0:
        values, power = values.square(), power / 2
    return values if power == 1 else values**power

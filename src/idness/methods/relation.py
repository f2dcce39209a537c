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
        # The products are shared by every power. Means have the same order as the paper's sums.
        first, features, probabilities = detectors[0], unit(acts.features), torch.softmax(acts.logits, dim=1)
        means = []
        for near, likely in zip(
            *(row_blocks(rows, len(first.bank_)) for rows in (features, probabilities)), strict=True
        ):
            relations = (near @ first.bank_.T).clamp_(min=0).mul_(likely @ first.probabilities_.T)
            kept = torch.threshold_(relations, CUT, 0.0)
            means.append(torch.stack([(kept**detector.power).mean(dim=1) for detector in detectors]))
        return list(torch.cat(means, dim=1).unbind())

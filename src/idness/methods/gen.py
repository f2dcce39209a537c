"""GEN -- Liu et al., "GEN: Pushing the Limits of Softmax-Based Out-of-Distribution Detection", CVPR 2023."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from idness.core.options import count, positive
from idness.core.types import Activations
from idness.detectors.detector import Detector


@dataclass(kw_only=True)
class GEN(Detector):
    """Negative generalized entropy of the largest softmax probabilities.

    Args:
        gamma: exponent; the smaller, the larger the weight of small probabilities.
        m: number of largest probabilities that are used; at most the number of classes.
    """

    formula = r"-\sum_{c=1}^{m} p_{(c)}^{\gamma} (1 - p_{(c)})^{\gamma}"
    assumes = "OOD images have less confident predictions"
    grid = {"gamma": (0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0), "m": (10, 50, 100, 200, 500, 1000)}

    gamma: float = positive(0.1)
    m: int = count(100)

    @classmethod
    def rate_many(cls, detectors: Sequence[Self], acts: Activations) -> list[Tensor]:
        # One sort suffices for every m, and one logarithm for every gamma.
        classes = acts.logits.shape[1]
        most = min(max(detector.m for detector in detectors), classes)
        largest = torch.softmax(acts.logits, dim=1).topk(most, dim=1).values
        logs = (largest * (1 - largest)).log()  # -inf for probabilities of 0 or 1, which exp() maps back to 0
        entropies = {gamma: (gamma * logs).exp().cumsum(dim=1) for gamma in {detector.gamma for detector in detectors}}
        return [-entropies[detector.gamma][:, min(detector.m, classes) - 1] for detector in detectors]

"""GradNorm -- Huang et al., "On the Importance of Gradients for Detecting Distributional Shifts in the Wild", NeurIPS 2021."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from idness.core.checks import positive
from idness.core.types import Activations
from idness.detectors.detector import Detector


@dataclass(kw_only=True)
class GradNorm(Detector):
    """Take the size of the head's gradient that pulls an image's probabilities towards uniform ones.

    The loss is KL(uniform || softmax(z / T)). Its gradient at the weight of class c and feature d is
    (p_c - 1 / C) a_d / T, so that the sum of absolute values is a product, and no backward pass is needed.

    Args:
        temperature: T; the paper finds 1 best.
    """

    formula = (
        r"\frac{1}{T} \, \lVert p - \frac{1}{C} \rVert_1 \, \lVert a \rVert_1, \quad p = "
        r"\operatorname{softmax}(z / T)"
    )
    assumes = "ID images have large features and a sure softmax"
    grid = {"temperature": (0.5, 1.0, 2.0, 4.0)}

    temperature: float = positive(1.0)

    def rate(self, acts: Activations) -> Tensor:
        # The authors' code leaves out the 1 / C of the uniform distribution: C times this, the same order.
        uneven = torch.softmax(acts.logits / self.temperature, dim=1) - 1 / acts.logits.shape[1]
        return uneven.abs().sum(dim=1) * acts.features.abs().sum(dim=1) / self.temperature

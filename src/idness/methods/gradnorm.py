"""GradNorm -- Huang et al., "On the Importance of Gradients for Detecting Distributional Shifts in the Wild", NeurIPS 2021."""

from dataclasses import dataclass

import torch
from torch import Tensor

from idness.core.options import positive
from idness.core.types import Activations
from idness.detectors.detector import Detector


@dataclass(kw_only=True)
class GradNorm(Detector):
    """L1 norm of the head's gradient of the divergence between uniform and predicted probabilities.

    The loss is KL(uniform || softmax(z / T)). Its gradient at the weight of class c and feature d is
    (p_c - 1 / C) a_d / T, so the norm is a product, and no backward pass is needed.

    Args:
        temperature: T; 1 is best in the paper.
    """

    formula = (
        r"\frac{1}{T} \, \lVert p - \frac{1}{C} \rVert_1 \, \lVert a \rVert_1, \quad p = "
        r"\operatorname{softmax}(z / T)"
    )
    assumes = "ID images have large features and confident predictions"
    grid = {"temperature": (0.5, 1.0, 2.0, 4.0)}

    temperature: float = positive(1.0)

    def rate(self, acts: Activations) -> Tensor:
        # The authors' code omits the factor 1 / C of the uniform distribution; the order is the same.
        uneven = torch.softmax(acts.logits / self.temperature, dim=1) - 1 / acts.logits.shape[1]
        return uneven.abs().sum(dim=1) * acts.features.abs().sum(dim=1) / self.temperature

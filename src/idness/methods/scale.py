"""SCALE -- Xu et al., "Scaling for Training Time and Post-hoc Out-of-distribution Detection Enhancement", ICLR 2024."""

from dataclasses import dataclass

import torch
from torch import Tensor

from idness.core.options import percent
from idness.core.types import Activations
from idness.detectors.detector import Enhancer
from idness.detectors.kernels import scale_ratio


@dataclass(kw_only=True)
class Scale(Enhancer):
    """Scaling of all features by exp(r), where r is the sum of all activations over the sum of the largest.

    Requires non-negative features (post-ReLU); warns otherwise. Unlike ASH-S, it does not prune features.

    Args:
        percentile: percentage of activations excluded from the sum of the largest.
    """

    formula = r"E(W a\, e^{r} + b), \quad r = \frac{\sum_j a_j}{\sum_{j \in top} a_j}"
    assumes = "features are non-negative, and ID images have many active features besides the largest"
    assumes_nonnegative = True
    grid = {"percentile": (10.0, 30.0, 50.0, 65.0, 70.0, 75.0, 80.0, 85.0, 90.0, 95.0)}

    percentile: float = percent(85.0)

    def shape(self, features: Tensor) -> Tensor:
        return features * scale_ratio(features, self.percentile).exp().unsqueeze(1)

    def shaped_logits(self, acts: Activations) -> Tensor:
        # W (a exp(r)) + b = exp(r) (z - b) + b, so no second matrix product is needed.
        bias = self.head_.offset
        factor = scale_ratio(acts.features, self.percentile).exp().unsqueeze(1)
        return torch.addcmul(bias, acts.logits - bias, factor)

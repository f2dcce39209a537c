"""SCALE -- Xu et al., "Scaling for Training Time and Post-hoc Out-of-distribution Detection Enhancement", ICLR 2024."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from idness.core.checks import percent
from idness.core.types import Activations
from idness.detectors.detector import Enhancer
from idness.detectors.kernels import ROWS, scale_ratio, scale_ratios


@dataclass(kw_only=True)
class Scale(Enhancer):
    """Scale all features by exp(r), where r is the sum of all activations over the sum of the largest.

    Requires non-negative features (post-ReLU); warns otherwise. Unlike ASH-S it prunes nothing.

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
        return self._scaled(acts.logits, scale_ratio(acts.features, self.percentile))

    @classmethod
    def rate_many(cls, detectors: Sequence[Self], acts: Activations) -> list[Tensor]:
        if torch.compiler.is_exporting():
            return [detector.rate(acts) for detector in detectors]
        # One pass over the features for all percentiles, and logits in blocks that fit the processor's cache.
        ratios = scale_ratios(acts.features, [detector.percentile for detector in detectors])
        return [detector._rate_parts(acts.logits, ratio) for detector, ratio in zip(detectors, ratios, strict=True)]

    def _rate_parts(self, logits: Tensor, ratio: Tensor) -> Tensor:
        parts = zip(torch.split(logits, ROWS), torch.split(ratio, ROWS), strict=True)
        return torch.cat([self.read(self._scaled(*part)) for part in parts])

    def _scaled(self, logits: Tensor, ratio: Tensor) -> Tensor:
        # W (a exp(r)) + b = exp(r) (z - b) + b: no second matrix product.
        bias = self.head_.offset
        return torch.addcmul(bias, logits - bias, ratio.exp().unsqueeze(1))

"""NECO -- Ben Ammar et al., "NECO: NEural Collapse Based Out-of-distribution detection", ICLR 2024."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from idness.core.options import one_of, percent
from idness.core.types import Activations, Head
from idness.detectors.detector import Detector
from idness.detectors.gaussian import feature_moments, principal_axes
from idness.detectors.kernels import lengths
from idness.detectors.readouts import max_logit


@dataclass(kw_only=True)
class NECO(Detector):
    """Fraction of the standardized features' length in the principal space of training images, times the largest logit.

    Args:
        variance: minimum percentage of the training images' variance in the principal space.
        times: `logit` multiplies by the largest logit, as the authors do for all networks except ResNets; `nothing` does not.
    """

    formula = r"\frac{\lVert P \tilde a \rVert}{\lVert \tilde a \rVert} \cdot \max_c z_c"
    assumes = "ID features vary in few directions"
    needs_train = True
    grid = {"variance": (50.0, 70.0, 90.0, 95.0), "times": ("logit", "nothing")}

    variance: float = percent(90.0)
    times: str = one_of("logit", "nothing")

    @classmethod
    def learn_many(cls, detectors: Sequence[Self], head: Head, train: Activations, val: Activations) -> None:
        features = feature_moments(train)
        centre = features.mean
        common = features.around(centre)
        spread = common.diagonal().sqrt()
        # Constant features are not scaled.
        spread = torch.where(spread > 1e-9 * spread.max(), spread, 1.0)
        axes, variances = principal_axes(common / torch.outer(spread, spread))
        held = 100 * variances.cumsum(dim=0) / variances.sum().clamp(min=1e-300)
        for detector in detectors:
            count = int((held < detector.variance).sum()) + 1
            detector.centre_, detector.spread_, detector.axes_ = centre, spread, axes[:, :count].contiguous()

    def rate(self, acts: Activations) -> Tensor:
        # Both lengths are of standardized features; for DeiT and Swin the authors' code divides by the raw length.
        standard = (acts.features.double() - self.centre_) / self.spread_
        share = lengths(standard @ self.axes_) / lengths(standard).clamp(min=1e-12)
        return (share * max_logit(acts.logits) if self.times == "logit" else share).float()

"""Residual -- Wang et al., "ViM: Out-Of-Distribution with Virtual-logit Matching", CVPR 2022 (its feature part alone)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from idness.core.options import percent
from idness.core.types import Activations, Head
from idness.detectors.detector import Detector
from idness.detectors.gaussian import feature_moments, head_axes, principal_axes
from idness.detectors.kernels import lengths, shared


@dataclass(kw_only=True)
class Residual(Detector):
    """Negative length of the features outside the principal space of training images.

    Args:
        share: size of the principal space in percent of all directions; the default is close to ViM's and OpenOOD's
            (1,000 of 2,048, 256 of 512).
    """

    formula = r"-\lVert P^{\perp} (a - u) \rVert, \quad u = -W^{+} b"
    assumes = "ID features lie in a subspace"
    needs_train = takes_labels = uses_head = True
    grid = {"share": (12.5, 25.0, 50.0, 75.0)}

    share: float = percent(50.0)

    def learn(self, head: Head, train: Activations, val: Activations) -> None:
        # The paper uses training images; OpenOOD uses validation images here.
        self.origin_ = _origin(head)
        axes, variances = principal_axes(feature_moments(train).around(self.origin_))
        alive = int((variances > 0).sum())  # directions in which training images vary
        self.space_ = axes[:, min(round(alive * self.share / 100), len(axes) - 1) :].contiguous()

    def residual(self, acts: Activations) -> Tensor:
        """Return the length (N,) of the features outside the principal space."""
        return lengths((acts.features.double() - self.origin_) @ self.space_)

    def rate(self, acts: Activations) -> Tensor:
        return -self.residual(acts).float()


@shared
def _origin(head: Head) -> Tensor:
    """Return u = -W^+ b, at which all logits are 0."""
    left, sizes, right = head_axes(head)
    counts = sizes > sizes.max() * max(head.weight.shape) * torch.finfo(torch.double).eps
    found: Tensor = -right @ (torch.where(counts, 1 / sizes, 0.0) * (left.T @ head.offset.double()))
    return found

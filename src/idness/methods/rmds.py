"""RMDS -- Ren et al., "A Simple Fix to Mahalanobis Distance for Improving Near-OOD Detection", 2021."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from idness.core.types import Activations, Head
from idness.detectors.gaussian import whitening, whitening_of
from idness.detectors.moments import class_moments
from idness.methods.mds import MDS


@dataclass(kw_only=True)
class RMDS(MDS):
    """Take how much nearer an image is to its class than to the data as a whole, in squared Mahalanobis distances.

    Args:
        shrinkage: how far the covariance is moved towards a multiple of the identity, for few training images.
    """

    formula = (
        r"d_0(a) - \min_c d_c(a), \quad "
        r"d_c(a) = (a - \mu_c)^\top \Sigma^{-1} (a - \mu_c), \quad "
        r"d_0(a) = (a - \mu)^\top \Sigma_0^{-1} (a - \mu)"
    )
    assumes = "classes are Gaussian with one covariance, and so is the whole"

    def learn(self, head: Head, train: Activations, val: Activations) -> None:
        super().learn(head, train, val)
        if len(train) < head.width and not self.shrinkage:
            self.background_ = whitening_of([self.place(train.features) - self.centre_])
        else:
            self.background_ = whitening(class_moments(train, self.place).around(self.centre_), self.shrinkage)

    def rate(self, acts: Activations) -> Tensor:
        background = ((self.place(acts.features) - self.centre_) @ self.background_).square().sum(dim=1)
        return (background - self.nearest(acts.features)).float()

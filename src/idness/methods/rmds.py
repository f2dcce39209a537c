"""RMDS -- Ren et al., "A Simple Fix to Mahalanobis Distance for Improving Near-OOD Detection", 2021."""

from dataclasses import dataclass

from torch import Tensor

from idness.core.types import Activations, Head
from idness.detectors.gaussian import class_moments
from idness.methods.mds import MDS


@dataclass(kw_only=True)
class RMDS(MDS):
    """Squared Mahalanobis distance to the mean of all data minus that to the nearest class mean.

    Args:
        shrinkage: fraction in [0, 1) by which covariances move towards a multiple of the identity, for few training
            images; `auto` chooses it by the number of images and features (OAS). 0 in the paper.
    """

    formula = (
        r"d_0(a) - \min_c d_c(a), \quad "
        r"d_c(a) = (a - \mu_c)^\top \Sigma^{-1} (a - \mu_c), \quad "
        r"d_0(a) = (a - \mu)^\top \Sigma_0^{-1} (a - \mu)"
    )
    assumes = "classes are Gaussian with one covariance, and so is the whole data set"

    def learn(self, head: Head, train: Activations, val: Activations) -> None:
        super().learn(head, train, val)
        self.background_ = self.whiten(class_moments(train, self.place).around(self.centre_), len(train) - 1)

    def rate(self, acts: Activations) -> Tensor:
        background = ((self.place(acts.features) - self.centre_) @ self.background_).square().sum(dim=1)
        return (background - self.nearest(acts.features)).float()

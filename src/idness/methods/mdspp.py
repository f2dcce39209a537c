"""Mahalanobis++ -- Mueller and Hein, "Mahalanobis++: Improving OOD Detection via Feature Normalization", ICML 2025."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from idness.detectors.kernels import unit
from idness.methods.mds import MDS


@dataclass(kw_only=True)
class MDSPP(MDS):
    """Take minus the squared Mahalanobis distance to the nearest class mean, on features of length 1.

    The lengths of features differ between classes and are small for many OOD images, which fits one Gaussian per
    class badly; their directions fit it better.

    Args:
        shrinkage: how far the covariance is moved towards a multiple of the identity, for few training images.
    """

    formula = r"-\min_c\, (\bar a - \mu_c)^\top \Sigma^{-1} (\bar a - \mu_c)"
    assumes = "classes are Gaussian with one covariance, by direction"

    @staticmethod
    def place(features: Tensor) -> Tensor:
        return unit(features.double())

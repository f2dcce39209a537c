"""Mahalanobis++ -- Mueller and Hein, "Mahalanobis++: Improving OOD Detection via Feature Normalization", ICML 2025."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from idness.detectors.kernels import unit
from idness.methods.mds import MDS


@dataclass(kw_only=True)
class MDSPP(MDS):
    """Negative squared Mahalanobis distance to the nearest class mean, on features scaled to length 1.

    The lengths of features differ between classes and are small for many OOD images, which Gaussians with a shared
    covariance do not fit well; directions of features fit better.

    Args:
        shrinkage: fraction in [0, 1) by which the covariance moves towards a multiple of the identity, 0 in the paper;
            `auto` chooses it by the number of images and features (OAS).
    """

    formula = r"-\min_c\, (\bar a - \mu_c)^\top \Sigma^{-1} (\bar a - \mu_c)"
    assumes = "directions of classes are Gaussian with one covariance"

    shrinkage: Any = "auto"

    @staticmethod
    def place(features: Tensor) -> Tensor:
        return unit(features.double())

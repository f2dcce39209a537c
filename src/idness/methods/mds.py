"""MDS -- Lee et al., "A Simple Unified Framework for Detecting Out-of-Distribution Samples and Adversarial Attacks", NeurIPS 2018."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from idness.core.checks import check_share
from idness.core.errors import IdnessWarning
from idness.core.types import Activations, Head
from idness.detectors.detector import Detector
from idness.detectors.gaussian import Moments, class_moments, nearest_squared, rank_deficit, whitening
from idness.detectors.kernels import shared


@dataclass(kw_only=True)
class MDS(Detector):
    """Negative squared Mahalanobis distance to the nearest class mean.

    One covariance for all classes, on the penultimate features, without input perturbation, as in OpenOOD.

    Args:
        shrinkage: fraction in [0, 1) by which the covariance moves towards a multiple of the identity, for few training
            images; 0 in the paper.
    """

    formula = r"-\min_c\, (a - \mu_c)^\top \Sigma^{-1} (a - \mu_c)"
    assumes = "classes are Gaussian with one covariance"
    needs_train = True
    needs_labels = True
    other = {"shrinkage": 0.1}

    shrinkage: float = 0.0

    def __post_init__(self) -> None:
        check_share(self, "shrinkage")

    def learn(self, head: Head, train: Activations, val: Activations) -> None:
        classes = class_moments(train, self.place)
        lacking = None if self.shrinkage else rank_deficit(classes)
        if lacking is not None:
            warnings.warn(f"{type(self).__name__}: {lacking}", IdnessWarning, stacklevel=5)
        self.centre_ = classes.mean
        self.whitening_ = whitening(classes.within, self.shrinkage)
        self.means_ = _whitened_means(classes, self.whitening_)

    @staticmethod
    def place(features: Tensor) -> Tensor:
        """Return the points (N, D) between which distances are measured, in float64; subclasses normalize them."""
        return features.double()

    def rate(self, acts: Activations) -> Tensor:
        return -self.nearest(acts.features).float()

    def nearest(self, features: Tensor) -> Tensor:
        """Return the squared distance (N,) of each image to the nearest class."""
        return _class_distance(features, self.place, self.centre_, self.whitening_, self.means_)


@shared
def _whitened_means(classes: Moments, whitening: Tensor) -> Tensor:
    return (classes.means[classes.present] - classes.mean) @ whitening


@shared
def _class_distance(
    features: Tensor, place: Callable[[Tensor], Tensor], centre: Tensor, whitening: Tensor, means: Tensor
) -> Tensor:
    return nearest_squared((place(features) - centre) @ whitening, means)

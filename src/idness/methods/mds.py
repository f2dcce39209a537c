"""MDS -- Lee et al., "A Simple Unified Framework for Detecting Out-of-Distribution Samples and Adversarial Attacks", NeurIPS 2018."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from torch import Tensor

from idness.core.checks import check_share
from idness.core.errors import IdnessWarning
from idness.core.types import Activations, Head
from idness.detectors.detector import Detector
from idness.detectors.gaussian import class_distance, too_few, whitened, whitening
from idness.detectors.moments import class_moments


@dataclass(kw_only=True)
class MDS(Detector):
    """Take minus the squared Mahalanobis distance to the nearest class mean.

    One covariance for all classes, on the penultimate features, without input perturbation, as OpenOOD runs it.

    Args:
        shrinkage: how far the covariance is moved towards a multiple of the identity, for few training images; in the
            paper not at all.
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
        lacking = None if self.shrinkage else too_few(classes)
        if lacking is not None:
            warnings.warn(f"{type(self).__name__}: {lacking}", IdnessWarning, stacklevel=5)
        self.centre_ = classes.mean
        self.whitening_ = whitening(classes.within(), self.shrinkage)
        self.means_ = whitened(classes.means[classes.present], self.centre_, self.whitening_)

    @staticmethod
    def place(features: Tensor) -> Tensor:
        """Give the points whose distances count, in float64; the methods that follow this one move them."""
        return features.double()

    def rate(self, acts: Activations) -> Tensor:
        return -self.nearest(acts.features).float()

    def nearest(self, features: Tensor) -> Tensor:
        """Compute the squared distance of each image to the nearest class."""
        return class_distance(features, self.place, self.centre_, self.whitening_, self.means_)

"""MDS -- Lee et al., "A Simple Unified Framework for Detecting Out-of-Distribution Samples and Adversarial Attacks", NeurIPS 2018."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from idness.core.types import Activations, Head
from idness.detectors.detector import Detector
from idness.detectors.gaussian import class_gaussians, nearest_squared


@dataclass(kw_only=True)
class MDS(Detector):
    """Take minus the squared Mahalanobis distance to the nearest class mean.

    One covariance for all classes, on the penultimate features, without input perturbation, as OpenOOD runs it.
    """

    needs_train = True
    needs_labels = True

    def learn(self, head: Head, train: Activations, val: Activations) -> None:
        assert train.labels is not None
        points = self.place(train.features)
        self.centre_, self.whitening_, self.means_ = class_gaussians(points, train.labels, head.classes)

    def place(self, features: Tensor) -> Tensor:
        """Give the points whose distances count, in float64; the methods that follow this one move them."""
        return features.double()

    def rate(self, acts: Activations) -> Tensor:
        centred = self.place(acts.features) - self.centre_
        return -nearest_squared(centred @ self.whitening_, self.means_).float()

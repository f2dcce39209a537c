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

    def learn(self, head: Head, train: Activations | None, val: Activations | None) -> None:
        assert train is not None
        self.centre_, self.whitening_, self.means_ = class_gaussians(train, head.classes)

    def rate(self, acts: Activations) -> Tensor:
        centred = acts.features.double() - self.centre_
        return -nearest_squared(centred @ self.whitening_, self.means_).float()

"""MDS -- Lee et al., "A Simple Unified Framework for Detecting Out-of-Distribution Samples and Adversarial Attacks", NeurIPS 2018."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from idness.detector import Detector
from idness.gaussian import class_means, nearest_squared, whitening
from idness.types import Activations, Head


@dataclass(kw_only=True)
class MDS(Detector):
    """Take minus the squared Mahalanobis distance to the nearest class mean.

    One covariance for all classes, on the penultimate features, without input perturbation, as OpenOOD runs it.
    """

    needs_train = True
    needs_labels = True

    def learn(self, head: Head, train: Activations | None, val: Activations | None) -> None:
        assert train is not None
        assert train.labels is not None
        means, present = class_means(train.features, train.labels, head.classes)
        self.centre_ = train.features.mean(dim=0)
        self.whitening_ = whitening(train.features - means[train.labels])
        self.means_ = (means[present] - self.centre_) @ self.whitening_

    def rate(self, acts: Activations) -> Tensor:
        return -nearest_squared((acts.features - self.centre_) @ self.whitening_, self.means_)

"""RMDS -- Ren et al., "A Simple Fix to Mahalanobis Distance for Improving Near-OOD Detection", 2021."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from idness.core.types import Activations, Head
from idness.detectors.detector import Detector
from idness.detectors.gaussian import class_gaussians, nearest_squared, whitening


@dataclass(kw_only=True)
class RMDS(Detector):
    """Take how much nearer an image is to its class than to the data as a whole, in squared Mahalanobis distances."""

    needs_train = True
    needs_labels = True

    def learn(self, head: Head, train: Activations | None, val: Activations | None) -> None:
        assert train is not None
        self.centre_, self.whitening_, self.means_ = class_gaussians(train, head.classes)
        self.background_ = whitening(train.features.double() - self.centre_)

    def rate(self, acts: Activations) -> Tensor:
        centred = acts.features.double() - self.centre_
        background = (centred @ self.background_).square().sum(dim=1)
        return (background - nearest_squared(centred @ self.whitening_, self.means_)).float()

"""RAS -- Guglielmo and Masana, "Ranked Activation Shift for Post-Hoc Out-of-Distribution Detection", ECCV 2026."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from idness.core.types import Activations, Head
from idness.detectors.detector import Enhancer
from idness.detectors.kernels import stable_order


@dataclass(kw_only=True)
class RAS(Enhancer):
    """Replace each image's sorted features by the mean sorted features of training images, keeping their ranks.

    After it all images have the same values; only which feature has which differs.
    """

    formula = r"E(W a' + b), \quad a'_{(j)} = \operatorname{mean} a_{(j)}"
    assumes = "which features are large tells more than how large"
    needs_train = True

    def learn(self, head: Head, train: Activations, val: Activations) -> None:
        # The abstract speaks of magnitudes, the authors' code sorts signed values, as here; after a ReLU they are one.
        self.profile_ = train.features.sort(dim=1).values.mean(dim=0, dtype=torch.double).float()

    def shape(self, features: Tensor) -> Tensor:
        # Of two equal features the first ranks lower, whatever the batch.
        return torch.zeros_like(features).scatter(1, stable_order(features), self.profile_.expand_as(features))

"""RAS -- Guglielmo and Masana, "Ranked Activation Shift for Post-Hoc Out-of-Distribution Detection", ECCV 2026."""

from dataclasses import dataclass

import torch
from torch import Tensor

from idness.core.types import Activations, Head
from idness.detectors.detector import Enhancer
from idness.detectors.kernels import ascending, shared


@dataclass(kw_only=True)
class RAS(Enhancer):
    """Replacement of each image's sorted features by the mean sorted features of training images; ranks are kept.

    All images then have the same values; only their order differs.
    """

    formula = r"E(W a' + b), \quad a'_{(j)} = \operatorname{mean} a_{(j)}"
    assumes = "which features are large matters more than how large they are"
    needs_train = True

    def learn(self, head: Head, train: Activations, val: Activations) -> None:
        # The abstract mentions magnitudes, the authors' code sorts signed values, as here; after a ReLU both agree.
        self.profile_ = ascending(train.features).mean(dim=0, dtype=torch.double).float()

    def shape(self, features: Tensor) -> Tensor:
        return torch.zeros_like(features).scatter(1, _order(features), self.profile_.expand_as(features))


@shared
def _order(features: Tensor) -> Tensor:
    """Return the places of each image's features in ascending order; of two equal features the first ranks lower."""
    if torch.compiler.is_exporting():  # ONNX has no stable sort, but its top-k is stable
        return features.topk(features.shape[1], dim=1, largest=False).indices
    return features.sort(dim=1, stable=True).indices

"""OptFS -- Zhao et al., "Towards Optimal Feature-Shaping Methods for Out-of-Distribution Detection", ICLR 2024."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from idness.core.options import count
from idness.core.types import Activations, Head
from idness.detectors.detector import Enhancer

TAILS = (0.001, 0.999)
"""Quantiles of all training features that bound the bins."""
NORM = 1000.0
"""Norm of the factors in the authors' code, arbitrary in the paper; it makes the energy almost the largest logit."""


@dataclass(kw_only=True)
class OptFS(Enhancer):
    """Multiply each feature by the mean contribution of features of its size to the predicted class on training images.

    Bins of equal width cover the values; features outside become 0. The factors maximize the mean largest logit of
    training images for a given norm: the factor of a bin is proportional to the mean over images of the sum of
    w_predicted,j a_j over the features j in the bin.

    Args:
        bins: number of bins.
    """

    formula = (
        r"E(W a' + b), \quad "
        r"a'_j = \theta(a_j)\, a_j, \quad "
        r"\theta_{bin} \propto \operatorname{mean} \sum_{j \in bin} w_{\hat y j}\, a_j"
    )
    assumes = "the usefulness of a feature depends only on its value"
    needs_train = True
    grid = {"bins": (25, 50, 100, 200)}

    bins: int = count(100)

    def learn(self, head: Head, train: Activations, val: Activations) -> None:
        low, high = np.quantile(train.features.cpu().numpy(), TAILS).tolist()
        self.low_ = torch.tensor(low, dtype=torch.float32, device=train.features.device)
        # The width of identical features would be 0.
        self.width_ = torch.tensor(max((high - low) / self.bins, 1e-30)).to(self.low_)
        gains = torch.zeros(self.bins, dtype=torch.double, device=train.features.device)
        for part in train.batches(1024):
            place, inside = self._bin(part.features)
            gain = head.weight[part.logits.argmax(dim=1)] * part.features
            gains.index_add_(0, place[inside], gain[inside].double())
        self.factors_ = (NORM * gains / gains.norm().clamp(min=1e-30)).float()

    def shape(self, features: Tensor) -> Tensor:
        place, inside = self._bin(features)
        return torch.where(inside, features * self.factors_[place], 0.0)

    def _bin(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the bin of each feature, and whether it is inside any."""
        place = ((features - self.low_) / self.width_).floor()
        return place.clamp(0, self.bins - 1).long(), (place >= 0) & (place < self.bins)

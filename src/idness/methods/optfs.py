"""OptFS -- Zhao et al., "Towards Optimal Feature-Shaping Methods for Out-of-Distribution Detection", ICLR 2024."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from idness.core.options import count
from idness.core.types import Activations, Head
from idness.detectors.detector import Enhancer
from idness.detectors.kernels import percentile_of

TAILS = (0.1, 99.9)
"""Percentiles of all training features that delimit the bins."""
NORM = 1000.0
"""Norm of the factors in the authors' code, arbitrary in the paper; it is so large that the energy is almost the largest logit."""


@dataclass(kw_only=True)
class OptFS(Enhancer):
    """Scaling of each feature by the mean contribution of features of its size to the predicted class on training images.

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
        self.low_, high = (percentile_of(train.features, tail) for tail in TAILS)
        # If all features are identical, the width would be 0.
        self.width_ = ((high - self.low_) / self.bins).clamp(min=1e-30)
        gains = torch.zeros(self.bins + 1, dtype=torch.double, device=train.features.device)
        for part in train.batches(1024):
            gain = head.weight[part.logits.argmax(dim=1)] * part.features
            gains += self._bin(part.features).flatten().bincount(gain.flatten().double(), self.bins + 1)
        gains = gains[:-1]
        self.factors_ = (NORM * gains / gains.norm().clamp(min=1e-30)).float()

    def shape(self, features: Tensor) -> Tensor:
        return features * pad(self.factors_, (0, 1))[self._bin(features)]

    def _bin(self, features: Tensor) -> Tensor:
        """Return the bin of each feature; features outside are in an additional one."""
        place = ((features - self.low_) / self.width_).floor()
        return torch.where((place >= 0) & (place < self.bins), place, self.bins).long()

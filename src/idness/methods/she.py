"""SHE -- Zhang et al., "Out-of-Distribution Detection based on In-Distribution Data Patterns Memorization with Modern
Hopfield Energy", ICLR 2023.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from idness.core.options import one_of
from idness.core.types import Activations, Head
from idness.detectors.detector import Detector
from idness.detectors.gaussian import Moments, mean_features
from idness.detectors.kernels import lengths, unit


@dataclass(kw_only=True)
class SHE(Detector):
    """Inner product of the features with the mean of correctly classified training images of the predicted class.

    Args:
        metric: `inner_product` is the paper's score; `cosine` and `euclidean` are its alternatives.
    """

    formula = r"\langle a, \mu_{\hat y} \rangle"
    assumes = "ID images resemble the stored pattern of their class in direction and size"
    needs_train = needs_labels = True
    grid = {"metric": ("inner_product", "cosine", "euclidean")}

    metric: str = one_of("inner_product", "cosine", "euclidean")

    def learn(self, head: Head, train: Activations, val: Activations) -> None:
        known = train.logits.argmax(dim=1) == train.labels
        assert train.labels is not None
        right = Moments.of(train.features[known], train.labels[known], head.classes)
        # A class without correct predictions (NaN in public code) uses the mean of all images.
        self.patterns_ = torch.where(right.counts.unsqueeze(1) > 0, right.means, mean_features(train)).float()

    def rate(self, acts: Activations) -> Tensor:
        features, patterns = acts.features, self.patterns_[acts.logits.argmax(dim=1)]
        if self.metric == "cosine":
            features, patterns = unit(features), unit(patterns)
        if self.metric == "euclidean":
            return -lengths(features - patterns)
        return (features * patterns).sum(dim=1)

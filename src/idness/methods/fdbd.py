"""fDBD -- Liu and Qin, "Fast Decision Boundary based Out-of-Distribution Detector", ICML 2024."""

from dataclasses import dataclass

import torch
from torch import Tensor

from idness.core.types import Activations, Head
from idness.detectors.detector import Detector
from idness.detectors.gaussian import mean_features
from idness.detectors.kernels import lengths


@dataclass(kw_only=True)
class FDBD(Detector):
    """Mean distance to the decision boundaries, relative to the distance from the mean of training images."""

    formula = (
        r"\frac{1}{C - 1} \sum_{c \ne \hat y} \frac{z_{\hat y} - z_c}{\lVert w_{\hat y} - w_c \rVert} \, / \, "
        r"\lVert a - \mu \rVert"
    )
    assumes = "ID images are farther from the decision boundaries"
    needs_train = uses_head = True

    def learn(self, head: Head, train: Activations, val: Activations) -> None:
        self.centre_ = mean_features(train).float()
        weight = head.weight.double()
        apart = torch.cdist(weight, weight, compute_mode="use_mm_for_euclid_dist")
        # There is no boundary between a class and itself, or one with the same weights up to rounding.
        self.closeness_ = torch.where(apart > 1e-6 * apart.max(), 1 / apart, 0.0).float()

    def rate(self, acts: Activations) -> Tensor:
        # The distance to the boundary of class c is (z_max - z_c) / |w_max - w_c|; the authors' code sums, the paper averages.
        largest, predicted = acts.logits.max(dim=1, keepdim=True)
        distances = (largest - acts.logits) * self.closeness_[predicted.squeeze(1)]
        mean = distances.sum(dim=1) / max(1, acts.logits.shape[1] - 1)
        return mean / lengths(acts.features - self.centre_).clamp(min=1e-12)

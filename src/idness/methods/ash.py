"""ASH -- Djurisic et al., "Extremely Simple Activation Shaping for Out-of-Distribution Detection", ICLR 2023."""

from dataclasses import dataclass

import torch
from torch import Tensor

from idness.core.options import one_of, percent
from idness.detectors.detector import Enhancer
from idness.detectors.kernels import ascending, kept_count, scale_ratio


@dataclass(kw_only=True)
class Ash(Enhancer):
    """Pruning of the small features of each image; the others are scaled (s), kept (p) or binarized (b).

    Requires non-negative features (post-ReLU); warns otherwise.

    Args:
        variant: `s` multiplies the kept features by exp(sum of all / sum of kept), `p` leaves them unchanged, `b` sets
            each to the sum of all divided by their number.
        percentile: percentage of features that are set to zero.
    """

    formula = (
        r"E(W a' + b), \quad "
        r"a' = m \odot a\, e^{r} \ \text{(s)}, \quad "
        r"a' = m \odot a \ \text{(p)}, \quad "
        r"a' = m \, \frac{1}{k} \sum_j a_j \ \text{(b)}"
    )
    assumes = "features are non-negative, and small ones carry little information"
    assumes_nonnegative = True
    grid = {"percentile": (10.0, 30.0, 50.0, 65.0, 70.0, 75.0, 80.0, 85.0, 90.0, 95.0)}
    rows = {"ash-s": {"variant": "s"}, "ash-p": {"variant": "p"}, "ash-b": {"variant": "b"}}

    variant: str = one_of("s", "p", "b")
    percentile: float = percent(90.0)

    def shape(self, features: Tensor) -> Tensor:
        kept = kept_count(features.shape[1], self.percentile)
        if self.variant == "b":  # exactly this many, even with ties
            largest = features.topk(kept, dim=1, sorted=False).indices
            level = features.sum(dim=1, keepdim=True) / kept
            return torch.zeros_like(features).scatter(1, largest, level.expand_as(largest))
        # Many times faster than torch.where.
        rest = features.clone().ge_(ascending(features)[:, -kept, None]).mul_(features)
        if self.variant == "p":
            return rest
        return rest * scale_ratio(features, self.percentile).exp().unsqueeze(1)

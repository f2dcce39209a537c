"""ASH -- Djurisic et al., "Extremely Simple Activation Shaping for Out-of-Distribution Detection", ICLR 2023."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from idness.core.checks import one_of, percent
from idness.detectors.detector import Enhancer
from idness.detectors.kernels import kept_count, pruned, safe_ratio, top_mask


@dataclass(kw_only=True)
class Ash(Enhancer):
    """Prune each image's small features, and scale (s), keep (p) or level (b) the rest.

    Expects non-negative features, as a ReLU leaves them.

    Args:
        variant: s multiplies the kept features by exp(sum of all / sum of kept), p leaves them as they are, b sets each
            to the sum of all divided by their number.
        percentile: share of features, in percent, that is pruned.
    """

    formula = (
        r"E(W a' + b), \quad "
        r"a' = m \odot a\, e^{r} \ \text{(s)}, \quad "
        r"a' = m \odot a \ \text{(p)}, \quad "
        r"a' = m \, \frac{1}{k} \sum_j a_j \ \text{(b)}"
    )
    assumes = "features are at least 0, and the small ones say little"
    assumes_nonnegative = True
    grid = {"percentile": (10.0, 30.0, 50.0, 65.0, 70.0, 75.0, 80.0, 85.0, 90.0, 95.0)}
    rows = {"ash-s": {"variant": "s"}, "ash-p": {"variant": "p"}, "ash-b": {"variant": "b"}}

    variant: str = one_of("s", "p", "b")
    percentile: float = percent(90.0)

    def shape(self, features: Tensor) -> Tensor:
        kept = kept_count(features.shape[1], self.percentile)
        if self.variant == "b":
            return top_mask(features, kept) * (features.sum(dim=1, keepdim=True) / kept)
        rest = pruned(features, kept)
        if self.variant == "p":
            return rest
        ratio = safe_ratio(features.sum(dim=1), rest.sum(dim=1), features.shape[1] / kept)
        return rest.mul_(ratio.exp().unsqueeze(1))

"""ASH -- Djurisic et al., "Extremely Simple Activation Shaping for Out-of-Distribution Detection", ICLR 2023."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from idness.core.checks import one_of, percent
from idness.core.types import Activations
from idness.detectors.detector import Enhancer
from idness.detectors.kernels import kept_count, safe_ratio
from idness.detectors.pruning import blocks, kept_products, pruned, top_mask


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
        return rest if self.variant == "p" else rest * _factor(features.sum(dim=1), rest.sum(dim=1), features, kept)

    @classmethod
    def rate_many(cls, detectors: Sequence[Self], acts: Activations) -> list[Tensor]:
        if torch.compiler.is_exporting():
            return [detector.rate(acts) for detector in detectors]
        parts = [cls._rate_part(detectors, part) for part in blocks(acts.features)]
        return [torch.cat(scores) for scores in zip(*parts, strict=True)]

    @classmethod
    def _rate_part(cls, detectors: Sequence[Self], features: Tensor) -> list[Tensor]:
        head, total = detectors[0].head_, features.sum(dim=1)
        counts = [kept_count(features.shape[1], detector.percentile) for detector in detectors]
        pruning = {kept for detector, kept in zip(detectors, counts, strict=True) if detector.variant != "b"}
        products = kept_products(features, head, pruning) if pruning else {}

        def logits(detector: Self, kept: int) -> Tensor:
            if detector.variant == "b":
                return head(detector.shape(features))
            plain, top = products[kept]
            if detector.variant == "p":
                return plain + head.offset
            # W (a f) + b = f (W a) + b: s and p share the product.
            return torch.addcmul(head.offset, plain, _factor(total, top, features, kept))

        return [detector.read(logits(detector, kept)) for detector, kept in zip(detectors, counts, strict=True)]


def _factor(total: Tensor, top: Tensor, features: Tensor, kept: int) -> Tensor:
    return safe_ratio(total, top, features.shape[1] / kept).exp().unsqueeze(1)

"""ASH -- Djurisic et al., "Extremely Simple Activation Shaping for Out-of-Distribution Detection", ICLR 2023."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import linear

from idness.core.checks import one_of, percent
from idness.core.types import Activations
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
        return rest if self.variant == "p" else rest.mul_(_factor(features, rest, kept))

    @classmethod
    def rate_many(cls, detectors: Sequence[Self], acts: Activations) -> list[Tensor]:
        features, head = acts.features, detectors[0].head_

        @cache
        def left(kept: int) -> tuple[Tensor, Tensor]:
            """Multiply what pruning leaves with the head; with what ASH-S scales it by."""
            rest = pruned(features, kept)
            return linear(rest, head.weight), _factor(features, rest, kept)

        def logits(detector: Self) -> Tensor:
            if detector.variant == "b" or torch.compiler.is_exporting():
                return detector.shaped_logits(acts)
            plain, factor = left(kept_count(features.shape[1], detector.percentile))
            # W (a f) + b = f (W a) + b: s and p share the product.
            return torch.addcmul(head.offset, plain, factor) if detector.variant == "s" else plain + head.offset

        return [detector.read(logits(detector)) for detector in detectors]


def _factor(features: Tensor, rest: Tensor, kept: int) -> Tensor:
    ratio = safe_ratio(features.sum(dim=1), rest.sum(dim=1), features.shape[1] / kept)
    return ratio.exp().unsqueeze(1)

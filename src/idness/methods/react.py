"""ReAct -- Sun et al., "ReAct: Out-of-distribution Detection With Rectified Activations", NeurIPS 2021."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from idness.core.checks import percent
from idness.core.types import Activations, Head
from idness.detectors.detector import Enhancer
from idness.detectors.kernels import percentiles
from idness.detectors.pruning import excess_products


@dataclass(kw_only=True)
class ReAct(Enhancer):
    """Clip features at a percentile of all in-distribution activations.

    The percentile is taken over validation images where there are any, else over training images.

    Args:
        percentile: share of activations, in percent, that lie below the clip.
    """

    formula = r"E(W \min(a, P_p) + b)"
    assumes = "OOD images excite a few features far too much"
    needs_train = True
    needs_val = True
    grid = {"percentile": (85.0, 90.0, 95.0, 99.0)}

    percentile: float = percent(90.0)

    @classmethod
    def learn_many(cls, detectors: Sequence[Self], head: Head, train: Activations, val: Activations) -> None:
        clips = percentiles(val.features, [detector.percentile for detector in detectors])
        for detector, clip in zip(detectors, clips, strict=True):
            detector.clip_ = clip

    def shape(self, features: Tensor) -> Tensor:
        return features.minimum(self.clip_)

    def shaped_logits(self, acts: Activations) -> Tensor:
        # W min(a, c) = W a - W (what exceeds c), which is little: the logits are there already.
        excess = excess_products(acts.features, self.head_, self.clip_)
        return super().shaped_logits(acts) if excess is None else acts.logits - excess

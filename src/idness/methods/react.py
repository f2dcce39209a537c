"""ReAct -- Sun et al., "ReAct: Out-of-distribution Detection With Rectified Activations", NeurIPS 2021."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from idness.core.checks import check_percent
from idness.core.types import Activations, Head
from idness.detectors.detector import Enhancer


@dataclass(kw_only=True)
class ReAct(Enhancer):
    """Clip features at a percentile of all in-distribution activations.

    The percentile is taken over validation images where there are any, else over training images.

    Args:
        percentile: share of activations, in percent, that lie below the clip.
    """

    needs_train = True
    needs_val = True
    grid = {"percentile": (85.0, 90.0, 95.0, 99.0)}

    percentile: float = 90.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_percent(self, "percentile")

    def learn(self, head: Head, train: Activations | None, val: Activations | None) -> None:
        self.learn_many([self], head, train, val)

    @classmethod
    def learn_many(
        cls, detectors: Sequence[Self], head: Head, train: Activations | None, val: Activations | None
    ) -> None:
        acts = val if val is not None else train
        assert acts is not None
        # One selection serves every percentile.
        clips = np.percentile(acts.features.cpu().numpy().ravel(), [detector.percentile for detector in detectors])
        for detector, clip in zip(detectors, clips, strict=True):
            detector._clip_at(torch.tensor(clip, dtype=torch.float32, device=acts.features.device))

    def _clip_at(self, clip: Tensor) -> None:
        self.clip_ = clip

    def shape(self, features: Tensor) -> Tensor:
        return features.minimum(self.clip_)

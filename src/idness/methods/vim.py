"""ViM -- Wang et al., "ViM: Out-Of-Distribution with Virtual-logit Matching", CVPR 2022."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from idness.core.checks import percent
from idness.core.types import Activations, Head
from idness.detectors.detector import Detector
from idness.detectors.gaussian import residual_spaces
from idness.detectors.kernels import lengths
from idness.detectors.readouts import energy


@dataclass(kw_only=True)
class ViM(Detector):
    """Take from the energy the length of the features outside the principal space of training images, as a logit.

    Args:
        share: share of the directions, in percent, that make the principal space; half is near what the authors and
            OpenOOD take (1,000 of 2,048, 256 of 512).
    """

    needs_train = True
    uses_head = True
    grid = {"share": (12.5, 25.0, 50.0, 75.0)}

    share: float = percent(50.0)

    @classmethod
    def learn_many(cls, detectors: Sequence[Self], head: Head, train: Activations, val: Activations) -> None:
        origin, spaces = residual_spaces(head, train, [detector.share for detector in detectors])
        for detector, space in zip(detectors, spaces, strict=True):
            detector.origin_, detector.space_ = origin, space
            # The paper takes the images that shaped the space. Where they are no more than its directions they have next to
            # no residual, and everything else looks far away: so other images where there are any.
            # Were the largest logits negative on average, the penalty would be a reward: their size counts.
            largest = val.logits.double().amax(dim=1).mean().abs()
            detector.alpha_ = largest / detector._residual(val).mean().clamp(min=1e-12)

    def _residual(self, acts: Activations) -> Tensor:
        return lengths((acts.features.double() - self.origin_) @ self.space_)

    def rate(self, acts: Activations) -> Tensor:
        return (energy(acts.logits) - self.alpha_ * self._residual(acts)).float()

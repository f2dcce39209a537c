"""ViM -- Wang et al., "ViM: Out-Of-Distribution with Virtual-logit Matching", CVPR 2022."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from idness.core.types import Activations, Head
from idness.detectors.readouts import energy
from idness.methods.residual import Residual


@dataclass(kw_only=True)
class ViM(Residual):
    """Take from the energy the length of the features outside the principal space of training images, as a logit.

    Args:
        share: share of the directions, in percent, that make the principal space; half is near what the authors and
            OpenOOD take (1,000 of 2,048, 256 of 512).
    """

    formula = (
        r"E(z) - \alpha \lVert P^{\perp} (a - u) \rVert, \quad "
        r"\alpha = \frac{\lvert \operatorname{mean} \max_c z_c \rvert}{\operatorname{mean} \lVert P^{\perp} (a - u) \rVert}, \quad "
        r"u = -W^{+} b"
    )
    assumes = "ID features fill a part of the space, and have large logits"

    @classmethod
    def learn_many(cls, detectors: Sequence[Self], head: Head, train: Activations, val: Activations) -> None:
        super().learn_many(detectors, head, train, val)
        # The paper takes the images that shaped the space. Where they are no more than its directions they have next to
        # no residual, and everything else looks far away: so other images where there are any.
        # Were the largest logits negative on average, the penalty would be a reward: their size counts.
        largest = val.logits.double().amax(dim=1).mean().abs()
        for detector in detectors:
            detector.alpha_ = largest / detector.residual(val).mean().clamp(min=1e-12)

    def rate(self, acts: Activations) -> Tensor:
        return (energy(acts.logits) - self.alpha_ * self.residual(acts)).float()

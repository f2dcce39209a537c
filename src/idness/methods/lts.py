"""LTS -- Djurisic et al., "Logit Scaling for Out-of-Distribution Detection", 2024."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from idness.core.checks import percent
from idness.core.types import Activations
from idness.detectors.detector import Detector
from idness.detectors.kernels import scale_ratios
from idness.detectors.readouts import energy


@dataclass(kw_only=True)
class LTS(Detector):
    """Multiply each image's logits by (sum of all / sum of the largest features) squared, then take the energy.

    Unlike SCALE it scales the bias too, so that the class never changes. Negative features count as zero.

    Args:
        percentile: share of activations, in percent, left out of the sum of the largest.
    """

    formula = r"E(r^2 z), \quad r = \frac{\sum_j a_j}{\sum_{j \in top} a_j}"
    assumes = "ID images have many active features beside the largest"
    grid = {"percentile": (10.0, 30.0, 50.0, 65.0, 70.0, 75.0, 80.0, 85.0, 90.0, 95.0)}

    percentile: float = percent(95.0)

    @classmethod
    def rate_many(cls, detectors: Sequence[Self], acts: Activations) -> list[Tensor]:
        ratios = scale_ratios(acts.features.clamp(min=0), [detector.percentile for detector in detectors])
        return [energy(acts.logits * ratio.square().unsqueeze(1)) for ratio in ratios]

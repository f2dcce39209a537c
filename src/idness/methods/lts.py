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
    """Energy of the logits multiplied by r squared, where r is the sum of all features over the sum of the largest.

    Unlike SCALE it scales the bias too. Negative features count as zero.

    Args:
        percentile: percentage of activations excluded from the sum of the largest.
    """

    formula = r"E(r^2 z), \quad r = \frac{\sum_j a_j}{\sum_{j \in top} a_j}"
    assumes = "ID images have many active features besides the largest"
    grid = {"percentile": (10.0, 30.0, 50.0, 65.0, 70.0, 75.0, 80.0, 85.0, 90.0, 95.0)}

    percentile: float = percent(95.0)

    @classmethod
    def rate_many(cls, detectors: Sequence[Self], acts: Activations) -> list[Tensor]:
        ratios = scale_ratios(acts.features.clamp(min=0), [detector.percentile for detector in detectors])
        return [energy(acts.logits * ratio.square().unsqueeze(1)) for ratio in ratios]

"""LTS -- Djurisic et al., "Logit Scaling for Out-of-Distribution Detection", 2024."""

from dataclasses import dataclass

from torch import Tensor

from idness.core.options import percent
from idness.core.types import Activations
from idness.detectors.detector import Detector
from idness.detectors.kernels import scale_ratio
from idness.detectors.readouts import energy


@dataclass(kw_only=True)
class LTS(Detector):
    """Energy of the logits multiplied by r squared, where r is the sum of all features over the sum of the largest.

    Unlike SCALE, it also scales the bias. Negative features count as zero.

    Args:
        percentile: percentage of activations excluded from the sum of the largest.
    """

    formula = r"E(r^2 z), \quad r = \frac{\sum_j a_j}{\sum_{j \in top} a_j}"
    assumes = "ID images have many active features besides the largest"
    grid = {"percentile": (10.0, 30.0, 50.0, 65.0, 70.0, 75.0, 80.0, 85.0, 90.0, 95.0)}

    percentile: float = percent(95.0)

    def rate(self, acts: Activations) -> Tensor:
        ratio = scale_ratio(acts.features, self.percentile, rectified=True)
        return energy(acts.logits * ratio.square().unsqueeze(1))

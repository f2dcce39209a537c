"""MLS -- Hendrycks et al., "Scaling Out-of-Distribution Detection for Real-World Settings", ICML 2022."""

from dataclasses import dataclass

from torch import Tensor

from idness.core.types import Activations
from idness.detectors.detector import Detector
from idness.detectors.readouts import readout_for


@dataclass(kw_only=True)
class MLS(Detector):
    """Largest logit."""

    formula = r"\max_c z_c"
    assumes = "OOD images have smaller logits"
    takes_labels = True

    def rate(self, acts: Activations) -> Tensor:
        return readout_for(self.head_, "max_logit")(acts.logits)

"""MSP -- Hendrycks and Gimpel, "A Baseline for Detecting Misclassified and Out-of-Distribution Examples", ICLR 2017."""

from dataclasses import dataclass

from torch import Tensor

from idness.core.types import Activations
from idness.detectors.detector import Detector
from idness.detectors.readouts import readout_for


@dataclass(kw_only=True)
class MSP(Detector):
    """Largest softmax probability."""

    formula = r"\max_c p_c"
    assumes = "OOD images have less confident predictions"
    takes_labels = True

    def rate(self, acts: Activations) -> Tensor:
        return readout_for(self.head_, "msp")(acts.logits)

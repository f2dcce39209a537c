"""EBO -- Liu et al., "Energy-based Out-of-distribution Detection", NeurIPS 2020."""

from dataclasses import dataclass

from torch import Tensor

from idness.core.options import positive
from idness.core.types import Activations
from idness.detectors.detector import Detector
from idness.detectors.readouts import readout_for


@dataclass(kw_only=True)
class EBO(Detector):
    """Negative free energy of the logits, T logsumexp(z / T).

    Args:
        temperature: T; 1 in the paper and its tables.
    """

    formula = r"T \log \sum_c e^{z_c / T}"
    assumes = "OOD images have smaller logits"
    takes_labels = True
    other = {"temperature": 5.0}

    temperature: float = positive(1.0)

    def rate(self, acts: Activations) -> Tensor:
        return self.temperature * readout_for(self.head_, "energy")(acts.logits / self.temperature)

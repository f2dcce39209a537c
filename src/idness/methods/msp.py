"""MSP -- Hendrycks and Gimpel, "A Baseline for Detecting Misclassified and Out-of-Distribution Examples", ICLR 2017."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from idness.detector import Detector
from idness.readouts import msp
from idness.types import Activations


@dataclass(kw_only=True)
class MSP(Detector):
    """Take the largest softmax probability."""

    def rate(self, acts: Activations) -> Tensor:
        return msp(acts.logits)

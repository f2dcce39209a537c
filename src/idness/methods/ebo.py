"""EBO -- Liu et al., "Energy-based Out-of-distribution Detection", NeurIPS 2020."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from idness.checks import check_positive
from idness.detector import Detector
from idness.readouts import energy
from idness.types import Activations


@dataclass(kw_only=True)
class EBO(Detector):
    """Take the negative free energy of the logits, T logsumexp(z / T).

    Args:
        temperature: T; the paper and every table use 1.
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_positive(self, "temperature")

    def rate(self, acts: Activations) -> Tensor:
        return self.temperature * energy(acts.logits / self.temperature)

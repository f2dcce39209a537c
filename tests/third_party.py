"""What another package could offer under the entry-point group `idness.methods`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from idness.core.types import Activations
from idness.detectors.detector import Detector


@dataclass(kw_only=True)
class Norm(Detector):
    """Take the length of the features."""

    other = {"power": 1.0}

    power: float = 2.0

    def rate(self, acts: Activations) -> Tensor:
        return acts.features.norm(p=self.power, dim=1)


@dataclass(kw_only=True)
class Scale(Norm):
    """Take a name that is taken."""


def not_a_method() -> None:
    """Do nothing."""

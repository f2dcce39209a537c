"""What another package could offer under the entry-point group `idness.methods`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from idness.core.types import Activations
from idness.detectors.detector import Detector
from idness.methods import Scale

USUAL = 2.0


class Helper:
    """Stand first in the file without being a method."""


@dataclass(kw_only=True)
class Norm(Detector):
    """Take the length of the features."""

    other = {"power": 1.0}

    power: float = USUAL

    def rate(self, acts: Activations) -> Tensor:
        return acts.features.norm(p=self.power, dim=1)


@dataclass(kw_only=True)
class StrongScale(Scale):
    """Scale the features twice."""

    def shape(self, features: Tensor) -> Tensor:
        return super().shape(super().shape(features))


def not_a_method() -> None:
    """Do nothing."""

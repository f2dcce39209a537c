"""Relative Mahalanobis++ -- Mueller and Hein, "Mahalanobis++: Improving OOD Detection via Feature Normalization", ICML 2025."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from idness.detectors.kernels import unit
from idness.methods.rmds import RMDS


@dataclass(kw_only=True)
class RMDSPP(RMDS):
    """Take how much nearer an image is to its class than to the data as a whole, on features of length 1."""

    needs_train = True
    needs_labels = True

    def place(self, features: Tensor) -> Tensor:
        return unit(features.double())

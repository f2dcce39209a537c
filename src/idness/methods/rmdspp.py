"""Relative Mahalanobis++ -- Mueller and Hein, "Mahalanobis++: Improving OOD Detection via Feature Normalization", ICML 2025."""

from __future__ import annotations

from dataclasses import dataclass

from idness.methods.mdspp import MDSPP
from idness.methods.rmds import RMDS


@dataclass(kw_only=True)
class RMDSPP(MDSPP, RMDS):
    """Take how much nearer an image is to its class than to the data as a whole, on features of length 1.

    Args:
        shrinkage: how far the covariance is moved towards a multiple of the identity, for few training images.
    """

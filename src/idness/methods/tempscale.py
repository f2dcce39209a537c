"""TempScale -- Guo et al., "On Calibration of Modern Neural Networks", ICML 2017."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from idness.core.types import Activations, Head
from idness.detectors.detector import Detector
from idness.detectors.readouts import msp

FLAT = 1e-9
"""The slope at which the paper's code would stop: a network that makes no error has no best temperature but ever lower ones."""
STEPS = 60
"""Halvings of the range of temperatures, after which doubles differ no more."""
BOUNDS = (0.05, 20.0)
"""Where the temperature is held: a network that makes no error has its best temperature at 0, one at chance at infinity."""


@dataclass(kw_only=True)
class TempScale(Detector):
    """Take the largest softmax probability at the temperature that calibrates the network."""

    formula = r"\max_c \operatorname{softmax}(z / T^{*})_c"
    assumes = "OOD images make the calibrated softmax less sure"
    needs_train = True
    needs_val = True
    needs_labels = True

    def learn(self, head: Head, train: Activations, val: Activations) -> None:
        assert val.labels is not None
        self.temperature_ = best_temperature(val.logits, val.labels)

    def rate(self, acts: Activations) -> Tensor:
        return msp(acts.logits / self.temperature_)


def best_temperature(logits: Tensor, labels: Tensor) -> Tensor:
    """Find the temperature of least negative log-likelihood, by halving: the paper's code runs LBFGS for this one number.

    The loss is convex in the inverse temperature, so its slope tells on which side of it the best is.
    """
    exact = logits.double()
    right = exact.gather(1, labels.unsqueeze(1)).squeeze(1)
    low, high = 1 / BOUNDS[1], 1 / BOUNDS[0]
    for _ in range(STEPS):
        inverse = (low * high) ** 0.5
        expected = (torch.softmax(exact * inverse, dim=1) * exact).sum(dim=1)
        # Images whose logits are no numbers tell nothing, and where no image tells, the temperature stays 1.
        slope = float((expected - right).nanmean())
        if not slope:
            break
        low, high = (low, inverse) if slope * inverse > -FLAT else (inverse, high)
    found = torch.tensor(1 / (low * high) ** 0.5, dtype=torch.float, device=logits.device)
    return found if bool(torch.isfinite(exact).any()) else torch.ones_like(found)

"""TempScale -- Guo et al., "On Calibration of Modern Neural Networks", ICML 2017."""

from dataclasses import dataclass

import torch
from torch import Tensor

from idness.core.types import Activations, Head
from idness.detectors.detector import Detector
from idness.detectors.readouts import msp

FLAT = 1e-9
"""Slope at which the paper's code stops; for a network without errors, the optimal temperature is 0."""
STEPS = 60
"""Number of bisections, enough for float64."""
BOUNDS = (0.05, 20.0)
"""Range of the temperature: it would be 0 for a network without errors, infinite for one at chance level."""


@dataclass(kw_only=True)
class TempScale(Detector):
    """Largest softmax probability at the temperature that calibrates the network."""

    formula = r"\max_c \operatorname{softmax}(z / T^{*})_c"
    assumes = "OOD images have less confident calibrated predictions"
    needs_train = needs_val = needs_labels = True

    def learn(self, head: Head, train: Activations, val: Activations) -> None:
        assert val.labels is not None
        self.temperature_ = best_temperature(val.logits, val.labels)

    def rate(self, acts: Activations) -> Tensor:
        return msp(acts.logits / self.temperature_)


def best_temperature(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the temperature that minimizes the negative log-likelihood, by bisection; the paper's code uses LBFGS.

    The loss is convex in the inverse temperature, so the sign of its slope shows on which side the optimum is.
    """
    exact = logits.double()
    right = exact.gather(1, labels.unsqueeze(1)).squeeze(1)
    low, high = 1 / BOUNDS[1], 1 / BOUNDS[0]
    for _ in range(STEPS):
        inverse = (low * high) ** 0.5
        expected = (torch.softmax(exact * inverse, dim=1) * exact).sum(dim=1)
        slope = float((expected - right).mean())
        low, high = (low, inverse) if slope * inverse > -FLAT else (inverse, high)
    return torch.tensor(1 / (low * high) ** 0.5, dtype=torch.float, device=logits.device)

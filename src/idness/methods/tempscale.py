"""TempScale -- Guo et al., "On Calibration of Modern Neural Networks", ICML 2017."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from idness.core.types import Activations, Head
from idness.detectors.detector import Detector
from idness.detectors.readouts import msp

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
    """Find the temperature of least negative log-likelihood, from 1.5 as the paper's code does, run to convergence."""
    exact = logits.double()
    inverse = torch.tensor(1 / 1.5, dtype=torch.double, device=logits.device).log().requires_grad_()
    optimizer = torch.optim.LBFGS([inverse], lr=1.0, max_iter=100, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(exact * inverse.exp(), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with torch.enable_grad():
        optimizer.step(closure)  # type: ignore[no-untyped-call]
    return (-inverse.detach()).exp().nan_to_num(nan=1.0).clamp(*BOUNDS).float()

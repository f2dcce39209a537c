"""Reads one ID-ness score per image off logits; higher means more in-distribution."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def energy(logits: Tensor) -> Tensor:
    """Compute logsumexp of the logits, the negative free energy at temperature 1."""
    highest = logits.amax(dim=1, keepdim=True)
    # exp() of less than about -88 is denormal and many times slower, and nothing below -80 changes a float32 sum.
    powers = (logits - highest).clamp_(min=-80.0).exp_()
    return highest.squeeze(1) + powers.sum(dim=1).log()


def msp(logits: Tensor) -> Tensor:
    """Take the largest softmax probability."""
    return torch.softmax(logits, dim=1).amax(dim=1)


def max_logit(logits: Tensor) -> Tensor:
    """Take the largest logit."""
    return logits.amax(dim=1)


READOUTS: dict[str, Callable[[Tensor], Tensor]] = {"energy": energy, "msp": msp, "max_logit": max_logit}

"""Readouts: one ID-ness score per image from its logits (N, C); higher is more in-distribution."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import softplus

from idness.core.types import Head


def energy(logits: Tensor) -> Tensor:
    """Return the logsumexp of the logits (N,), the negative free energy at temperature 1."""
    highest = logits.amax(dim=1, keepdim=True)
    # exp() below about -88 is denormal and many times slower; values below -80 do not affect a float32 sum.
    powers = (logits - highest).clamp_(min=-80.0).exp_()
    return highest.squeeze(1) + powers.sum(dim=1).log()


def msp(logits: Tensor) -> Tensor:
    """Return the largest softmax probability (N,)."""
    return torch.softmax(logits, dim=1).amax(dim=1)


def max_logit(logits: Tensor) -> Tensor:
    """Return the largest logit (N,)."""
    return logits.amax(dim=1)


def joint_energy(logits: Tensor) -> Tensor:
    """Return the joint energy (N,), the sum over labels of their negative free energies -- Wang et al., NeurIPS 2021."""
    return softplus(logits).sum(dim=1)


def max_sigmoid(logits: Tensor) -> Tensor:
    """Return the largest sigmoid probability of a label (N,)."""
    return torch.sigmoid(logits).amax(dim=1)


READOUTS: dict[str, Callable[[Tensor], Tensor]] = {"energy": energy, "msp": msp, "max_logit": max_logit}
LABEL_READOUTS = {"energy": joint_energy, "msp": max_sigmoid, "max_logit": max_logit}
"""The corresponding readouts for multi-label networks."""


def readout_for(head: Head, name: str) -> Callable[[Tensor], Tensor]:
    """Return the readout of this name, for a single-label or a multi-label network."""
    return (LABEL_READOUTS if head.multi_label else READOUTS)[name]

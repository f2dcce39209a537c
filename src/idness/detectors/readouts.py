"""Reads one ID-ness score per image off logits; higher means more in-distribution."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import softplus

from idness.core.types import Head


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


def joint_energy(logits: Tensor) -> Tensor:
    """Add up the negative free energies of labels that an image has or has not -- Wang et al., NeurIPS 2021."""
    return softplus(logits).sum(dim=1)


def surest_label(logits: Tensor) -> Tensor:
    """Take the largest probability of a label, by its sigmoid."""
    return torch.sigmoid(logits).amax(dim=1)


READOUTS: dict[str, Callable[[Tensor], Tensor]] = {"energy": energy, "msp": msp, "max_logit": max_logit}
LABEL_READOUTS = {"energy": joint_energy, "msp": surest_label, "max_logit": max_logit}
"""The same for networks of which an image may get several labels, or none."""


def readout_for(head: Head, name: str) -> Callable[[Tensor], Tensor]:
    """Give the readout of this name that suits a network."""
    return (LABEL_READOUTS if head.multi_label else READOUTS)[name]

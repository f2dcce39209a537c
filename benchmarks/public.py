"""The work as public repositories of this field do it, in our own words: the yardstick for speed.

These are deliberately the common, slow formulations; they compute the same numbers as ours.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def scale_ratio(features: Tensor, percentile: float) -> Tensor:
    """Copy, take the top-k, scatter it into zeros, sum both."""
    copy = features.clone()
    total = copy.sum(dim=1)
    kept = features.shape[1] - int(np.round(features.shape[1] * percentile / 100.0))
    values, places = torch.topk(copy, kept, dim=1)
    copy.zero_().scatter_(dim=1, index=places, src=values)
    return total / copy.sum(dim=1)


def scale_energy(features: Tensor, weight: Tensor, bias: Tensor, percentile: float) -> Tensor:
    """Scale the features, then multiply by the head again."""
    scaled = features * torch.exp(scale_ratio(features, percentile)[:, None])
    return torch.logsumexp(scaled @ weight.T + bias, dim=1)


def ash_s_energy(features: Tensor, weight: Tensor, bias: Tensor, percentile: float) -> Tensor:
    """Prune by scattering the top-k, scale, multiply by the head."""
    copy = features.clone()
    before = copy.sum(dim=1)
    kept = features.shape[1] - int(np.round(features.shape[1] * percentile / 100.0))
    values, places = torch.topk(copy, kept, dim=1)
    copy.zero_().scatter_(dim=1, index=places, src=values)
    shaped = copy * torch.exp((before / copy.sum(dim=1))[:, None])
    return torch.logsumexp(shaped @ weight.T + bias, dim=1)


def gen_score(logits: Tensor, gamma: float, m: int) -> Tensor:
    """Sort the probabilities anew for every option."""
    largest = torch.sort(torch.softmax(logits, dim=1), dim=1).values[:, -m:]
    return -(largest**gamma * (1 - largest) ** gamma).sum(dim=1)


def dice_energy(features: Tensor, masked: Tensor, bias: Tensor) -> Tensor:
    """Build the (B, C, D) tensor of all contributions."""
    return torch.logsumexp((features[:, None, :] * masked).sum(dim=2) + bias, dim=1)


def rmds_score(features: Tensor, means: Tensor, precision: Tensor, middle: Tensor, background: Tensor) -> Tensor:
    """Loop over the classes, each with the full precision matrix."""
    away = features - middle
    outer = torch.einsum("nd,de,ne->n", away, background, away)
    best = torch.full((len(features),), -torch.inf)
    for mean in means:
        centred = features - mean
        best = torch.maximum(best, outer - torch.einsum("nd,de,ne->n", centred, precision, centred))
    return best

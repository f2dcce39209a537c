"""Histograms of many values for each image, and how far they are from a usual one; all of it can be exported."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def shares(values: Tensor, span: Tensor, bins: int) -> Tensor:
    """Compute the share of each row's values (N, M) in each of the equal bins (N, B) between two ends.

    The upper end counts as inside; values outside lower the sum of the shares.
    """
    low, high = span.unbind()
    # A little wider than the span, so that the largest value is in the last bin; never 0, which divides nothing.
    width = ((high - low) * (1 + 1e-9) / bins).clamp(min=1e-30)
    place = ((values - low) / width).floor()
    slot = torch.where((place >= 0) & (place < bins), place, bins).long()  # one slot more, for those outside
    counts = values.new_zeros(values.shape[0], bins + 1).scatter_add(1, slot, torch.ones_like(values))
    return counts[:, :bins] / values.shape[1]


def smoothed(rows: Tensor, window: int) -> Tensor:
    """Average each row over a sliding window; beyond its ends the row goes on as it ends.

    Of an even window the longer part lies to the right, as torch pads convolutions.
    """
    return rows @ torch.from_numpy(_weights(rows.shape[1], window)).to(rows)


@cache
def _weights(bins: int, window: int) -> NDArray[np.float64]:
    """Make the matrix that averages; an array, as a tensor that was made while a graph is exported is none."""
    steps = np.arange(window) - (window - 1) // 2
    seen = (np.arange(bins)[:, None] + steps).clip(0, bins - 1)
    return np.ascontiguousarray(np.eye(bins)[seen].mean(axis=1).T)


def divergence(usual: Tensor, rows: Tensor, window: int, floor: float) -> Tensor:
    """Compute KL(p || q) + KL(q || p) of a usual histogram p (B,) and each smoothed row q (N, B), lifted by a floor."""
    p, q = usual + floor, smoothed(rows, window) + floor
    p, q = p / p.sum(), q / q.sum(dim=1, keepdim=True)
    return ((q - p) * (q.log() - p.log())).sum(dim=1)

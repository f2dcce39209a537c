"""Histograms of many values for each image, and how far they are from a usual one; all of it can be exported."""

from __future__ import annotations

import torch
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
    bins = rows.shape[1]
    steps = torch.arange(window, device=rows.device) - (window - 1) // 2
    seen = (torch.arange(bins, device=rows.device).unsqueeze(1) + steps).clamp(0, bins - 1)
    weights = torch.eye(bins, dtype=rows.dtype, device=rows.device)[seen].mean(dim=1)
    return rows @ weights.T


def divergence(usual: Tensor, rows: Tensor, window: int, floor: float) -> Tensor:
    """Compute KL(p || q) + KL(q || p) of a usual histogram p (B,) and each smoothed row q (N, B), lifted by a floor."""
    p, q = usual + floor, smoothed(rows, window) + floor
    p, q = p / p.sum(), q / q.sum(dim=1, keepdim=True)
    return ((q - p) * (q.log() - p.log())).sum(dim=1)

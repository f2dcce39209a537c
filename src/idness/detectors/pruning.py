"""Rows of features of which only a few values count, and their products with the head: its columns for these are added up."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding_bag, linear

from idness.core.types import Head
from idness.detectors.kernels import ramp, runs_plain

Values = NDArray[np.float32]
AT_ONCE = 1 << 18
"""How many features are worked on at once: 1 MB of them, which stays in the cache."""
FEW, CLASSES = 0.25, 100
"""The share of a row's features up to which adding up columns takes less time than the whole product, with at least so many classes."""
FAR = 16.0
"""How many times a limit a value may be for what exceeds it to be taken off the logits: beyond, too many digits cancel."""


def top_mask(features: Tensor, kept: int) -> Tensor:
    """Mark the `kept` largest of each row; among equals the first ones in top-k's order."""
    if not runs_plain(features):
        return mask_plain(features, kept)
    return torch.cat([_mask(part, _limits(part.numpy(), [kept])[kept], kept) for part in blocks(features)])


def mask_plain(features: Tensor, kept: int) -> Tensor:
    """Mark them with torch alone: the twin of the fast path, and what is exported."""
    chosen = features.topk(kept, dim=1, sorted=False).indices
    return torch.zeros_like(features, dtype=torch.bool).scatter(1, chosen, True)


def blocks(features: Tensor) -> tuple[Tensor, ...]:
    """Split rows so that each part stays in the cache; a graph that is exported stays whole."""
    return torch.split(features, max(1, AT_ONCE // features.shape[1])) if runs_plain(features) else (features,)


def pruned(features: Tensor, kept: int) -> Tensor:
    """Set all but the `kept` largest of each row to zero."""
    if not runs_plain(features):
        return torch.where(mask_plain(features, kept), features, 0.0)
    return torch.cat([_pruned(part, _limits(part.numpy(), [kept])[kept], kept) for part in blocks(features)])


def kept_products(features: Tensor, head: Head, counts: Collection[int]) -> dict[int, tuple[Tensor, Tensor]]:
    """Multiply the largest of each row with the head's weights, for several numbers that are kept; with the sum of what is kept."""
    if not runs_plain(features):
        rests = {kept: pruned(features, kept) for kept in counts}
        return {kept: (linear(rest, head.weight), rest.sum(dim=1)) for kept, rest in rests.items()}
    array = np.ascontiguousarray(features.numpy())
    limits, found = _limits(array, counts), {}
    last: tuple[int, Tensor, Tensor] | None = None
    for kept in sorted(counts):
        # What is kept beyond the last number is little: it is added to what was summed up for that.
        fewer, *sums = last or (0, 0.0, 0.0)
        more = _summed(array, head, kept - fewer, limits[kept], limits[fewer] if fewer else None)
        last = None if more is None else (kept, sums[0] + more[0], sums[1] + more[1])
        found[kept] = _multiplied(features, head, kept, limits[kept]) if last is None else last[1:]
    return found


def excess_products(features: Tensor, head: Head, limit: Tensor) -> Tensor | None:
    """Multiply what exceeds a limit with the head's weights; none where many values do, or one by far, or torch alone may be used."""
    if not runs_plain(features) or head.classes < CLASSES:
        return None
    found = [_excess_product(np.ascontiguousarray(part.numpy()), head, limit.item()) for part in blocks(features)]
    parts = [part for part in found if part is not None]
    return torch.cat(parts) if len(parts) == len(found) else None


def _limits(array: Values, counts: Collection[int]) -> dict[int, Values]:
    """Find the least of the largest of each row (N, 1), for several numbers of these."""
    width = array.shape[1]
    if len(counts) == 1:
        [kept] = counts
        ordered = array - ramp(width)
        ordered.partition(width - kept, axis=1)
    else:
        ordered = np.sort(array, axis=1)
    return {kept: ordered[:, width - kept, None] for kept in counts}


def _mask(features: Tensor, limit: Values, kept: int) -> Tensor:
    mask = torch.from_numpy(features.numpy() >= limit)
    # Equal features at the limit are all above it, and of those only some are kept.
    tied = mask.sum(dim=1) != kept
    if bool(tied.any()):
        mask[tied] = mask_plain(features[tied], kept)
    return mask


def _pruned(features: Tensor, limit: Values, kept: int) -> Tensor:
    array = features.numpy()
    mask = array >= limit
    result = torch.from_numpy(np.multiply(array, mask))
    if np.count_nonzero(mask) != kept * len(array):
        # As above; of zeros it does not matter which are kept.
        tied = (np.count_nonzero(mask, axis=1) != kept) & (np.abs(limit[:, 0]) > ramp(array.shape[1])[-1])
        own = features[torch.from_numpy(tied)]
        result[torch.from_numpy(tied)] = torch.where(mask_plain(own, kept), own, 0.0)
    return result


def _multiplied(features: Tensor, head: Head, kept: int, limit: Values) -> tuple[Tensor, Tensor]:
    rest = _pruned(features, limit, kept)
    return linear(rest, head.weight), rest.sum(dim=1)


def _summed(
    array: Values, head: Head, count: int, low: Values, high: Values | None = None
) -> tuple[Tensor, Tensor] | None:
    """Add up the head's columns for the features between limits, so many of each row; none where it is more work or others are equal."""
    rows, width = array.shape
    if count > FEW * width or head.classes < CLASSES:
        return None
    places = _places(array, np.greater_equal, low, high)
    if len(places) != count * rows:  # there are equals at a limit
        return None
    by_row = places.reshape(rows, count)
    columns = by_row - np.arange(0, array.size, width)[:, None]
    if columns[:, 0].min() < 0 or columns[:, -1].max() >= width:  # one row has more of them, another fewer
        return None
    values = torch.from_numpy(array.take(by_row))
    return embedding_bag(torch.from_numpy(columns), head.columns, mode="sum", per_sample_weights=values), values.sum(
        dim=1
    )


def _places(array: Values, compared: np.ufunc, limit: Values | float, high: Values | None = None) -> NDArray[np.int64]:
    """Find the values above a limit, and below another if there is one, by their places in the whole array.

    NumPy jumps from one to the next where at most a tenth are, which a processor cannot foresee, and else goes through all in half
    that time: so that it does, some are added at the end.
    """
    count = array.size
    more = count // 8
    mask = np.ones(count + more, bool)
    inside = mask[:count].reshape(array.shape)
    compared(array, limit, out=inside)
    if high is not None:
        inside &= array < high
    found = np.flatnonzero(mask)
    return found[: len(found) - more]


def _excess_product(array: Values, head: Head, limit: float) -> Tensor | None:
    places = _places(array, np.greater, limit)
    if len(places) > FEW * array.size:
        return None
    values = array.take(places)
    if len(values) and not values.max() <= FAR * limit:
        return None
    starts = np.arange(0, array.size, array.shape[1])
    bags = np.searchsorted(places, starts)
    columns = places - starts.repeat(np.diff(bags, append=len(places)))
    weights = torch.from_numpy(values - np.float32(limit))
    return embedding_bag(
        torch.from_numpy(columns), head.columns, torch.from_numpy(bags), mode="sum", per_sample_weights=weights
    )

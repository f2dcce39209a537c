"""The few hot loops; each fast path has a plain-torch twin that tests compare it to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from idness.detectors.sharing import shared

ROWS = 128
"""Rows worked on at once: 2,048 float32 features each are 1 MB, which stays in the cache."""
HIGHEST = 80.0
"""Cap of the scale ratio: exp(88) overflows float32, and its product with a logit must not either."""


def unit(features: Tensor) -> Tensor:
    """Bring each row to length 1; rows of zeros, or too long for their precision, become zeros."""
    return torch.nn.functional.normalize(features, dim=1, eps=1e-10)


def row_blocks(rows: Tensor, width: int) -> tuple[Tensor, ...]:
    """Split rows so that `width` values made of each take about 32 MB at once; a graph that is exported stays whole."""
    if torch.compiler.is_exporting():
        return (rows,)
    return torch.split(rows, max(1, min(ROWS, (1 << 23) // width)))


def runs_plain(features: Tensor) -> bool:
    """Say whether NumPy may work on features: not on another device, in a graph that is exported, or where gradients flow."""
    return features.device.type == "cpu" and not torch.compiler.is_exporting() and not features.requires_grad


def kept_count(width: int, percentile: float) -> int:
    """Count the activations above a percentile, rounding half to even as the authors' code does.

    At least one is kept, so that narrow networks at high percentiles still have a ratio.
    """
    return max(1, width - round(width * percentile / 100))


def scale_ratio(features: Tensor, percentile: float) -> Tensor:
    """Compute r = sum of all / sum of the largest for each row."""
    return scale_ratios(features, [percentile])[0]


def scale_ratios(features: Tensor, percentiles: Sequence[float]) -> list[Tensor]:
    """Compute the ratio of each row for several percentiles in one pass."""
    kept = [kept_count(features.shape[1], percentile) for percentile in percentiles]
    if not runs_plain(features):
        return [ratio_plain(features, count) for count in kept]
    array = features.numpy()
    total = features.sum(dim=1)
    tops = _top_sums(array, kept) if len(set(kept)) > 1 else [_top_sum(array, kept[0])] * len(kept)
    return [
        safe_ratio(total, torch.from_numpy(top), features.shape[1] / count)
        for top, count in zip(tops, kept, strict=True)
    ]


def ratio_plain(features: Tensor, kept: int) -> Tensor:
    """Compute the ratio with torch alone: the twin of the fast path, and what is exported."""
    top = features.topk(kept, dim=1, sorted=False).values.sum(dim=1)
    return safe_ratio(features.sum(dim=1), top, features.shape[1] / kept)


def ratio_each(features: Tensor, percents: Tensor) -> Tensor:
    """Compute the ratio of non-negative rows that have a percentile each."""
    width = features.shape[1]
    kept = (width - (width * percents / 100).round().long()).clamp(min=1)
    sums = features.sort(dim=1, descending=True).values.cumsum(dim=1)
    return safe_ratio(sums[:, -1], sums.gather(1, kept.unsqueeze(1) - 1).squeeze(1), float(width))


def stable_order(features: Tensor) -> Tensor:
    """Find the order of each row's values, the least first and of equals the first first, as a stable sort gives it."""
    if torch.compiler.is_exporting():  # ONNX says so of top-k, and has no such sort
        return features.topk(features.shape[1], dim=1, largest=False).indices
    if not runs_plain(features):
        return features.sort(dim=1, stable=True).indices
    places = np.arange(features.shape[1])
    found = []
    for part in row_blocks(features, features.shape[1]):
        bits = (part.numpy() + np.float32(0)).view(np.int32)  # -0 becomes 0
        # A float's bits are in its order, those of negative ones reversed: with its place below them, one plain sort does both.
        whole = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).astype(np.int64)
        keys = np.sort((whole << 32) | places, axis=1)
        found.append(torch.from_numpy(keys & 0xFFFFFFFF))
    return torch.cat(found)


def percentiles(values: Tensor, percents: Sequence[float]) -> list[Tensor]:
    """Find percentiles of all values, whatever their shape; one selection serves them all."""
    found = np.percentile(values.cpu().numpy().ravel(), percents)
    return [torch.tensor(value, dtype=torch.float32, device=values.device) for value in found]


def lengths(rows: Tensor, dim: int = 1) -> Tensor:
    """Measure the Euclidean length of each row."""
    found: Tensor = torch.linalg.vector_norm(rows, dim=dim)
    return found


def safe_ratio(total: Tensor, top: Tensor, limit: float) -> Tensor:
    """Divide the sum of all by the sum of the largest, so that any row has a finite factor."""
    # Rows without positive activations have no ratio: 1, as when nothing is left out. Non-negative rows never
    # exceed D/k; signed ones are held there, so that the factor stays finite.
    bound = min(limit, HIGHEST)
    some = top > 0
    return torch.where(some, (total / torch.where(some, top, 1.0)).clamp(-bound, bound), 1.0)


def _top_sum(array: NDArray[np.float32], kept: int) -> NDArray[np.float32]:
    """Sum the largest of each row by partial sorting, which NumPy does with SIMD."""
    first = array.shape[1] - kept
    low = ramp(array.shape[1])
    block = np.empty((min(ROWS, len(array)), array.shape[1]), np.float32)
    result = np.empty(len(array), np.float32)
    for start in range(0, len(array), ROWS):
        part = np.subtract(array[start : start + ROWS], low, out=block[: len(array) - start])
        part.partition(first, axis=1)
        part[:, first:].sum(axis=1, out=result[start : start + ROWS])
    return result


@cache
def ramp(width: int) -> NDArray[np.float32]:
    """Make zeros different, below anything that counts: partial sorting is slow among equals, and a ReLU leaves many."""
    found: NDArray[np.float32] = np.arange(1, width + 1, dtype=np.float32) * np.finfo(np.float32).tiny
    return found


def _top_sums(array: NDArray[np.float32], kept: Sequence[int]) -> list[NDArray[np.float32]]:
    """Sum the largest of each row for several counts from one sort."""
    width = array.shape[1]
    counts = sorted(set(kept), reverse=True)
    edges = [width - count for count in counts]
    sums = np.empty((len(array), len(counts)), np.float32)
    for start in range(0, len(array), ROWS):
        block = np.sort(array[start : start + ROWS], axis=1)
        pieces = np.add.reduceat(block, edges, axis=1)
        # Each piece reaches to the next edge; adding them from the right gives the sums to the end.
        sums[start : start + ROWS] = pieces[:, ::-1].cumsum(axis=1)[:, ::-1]
    return [np.ascontiguousarray(sums[:, counts.index(count)]) for count in kept]


def kth_largest_products(queries: Tensor, bank: Tensor, ks: Sequence[int]) -> list[Tensor]:
    """Find the k-th largest inner product of each query with the rows of a bank, for several k.

    Exact, in blocks of bounded memory.
    """
    if queries.device.type != "cpu" or torch.compiler.is_exporting():
        return kth_plain(queries, bank, ks)
    places = [len(bank) - k for k in ks]
    found = np.concatenate([products[:, places].T for products in _partitioned(queries, bank, places)], axis=1)
    return list(torch.from_numpy(found))


def kth_plain(queries: Tensor, bank: Tensor, ks: Sequence[int]) -> list[Tensor]:
    """Find the same with torch alone: the twin of the fast path, and what is exported."""
    products = (queries @ bank.T).topk(max(ks), dim=1).values
    return [products[:, k - 1] for k in ks]


@shared
def mean_largest_products(queries: Tensor, bank: Tensor, ks: Sequence[int]) -> list[Tensor]:
    """Average the k largest inner products of each query with the rows of a bank, for several k.

    Exact, in blocks of bounded memory.
    """
    if queries.device.type != "cpu" or torch.compiler.is_exporting():
        return mean_plain(queries, bank, ks)
    places = [len(bank) - k for k in ks]
    blocks = _partitioned(queries, bank, places)
    means = [[products[:, place:].mean(axis=1) for place in places] for products in blocks]
    return list(torch.from_numpy(np.concatenate(means, axis=1)))


def _partitioned(queries: Tensor, bank: Tensor, places: Sequence[int]) -> Iterator[NDArray[np.float32]]:
    """Yield inner products in blocks of bounded memory, each row so ordered that what belongs at these places is there."""
    for part in row_blocks(queries, len(bank)):
        products = (part @ bank.T).numpy()
        products.partition(sorted(set(places)), axis=1)
        yield products


def mean_plain(queries: Tensor, bank: Tensor, ks: Sequence[int]) -> list[Tensor]:
    """Average the same with torch alone: the twin of the fast path, and what is exported."""
    products = (queries @ bank.T).topk(max(ks), dim=1).values
    return [products[:, :k].mean(dim=1) for k in ks]

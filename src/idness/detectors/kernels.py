"""Numerical functions that several methods use, and a cache of results that methods have in common.

Fast paths use NumPy on the CPU; exported graphs, other devices and gradients use torch alone, and tests compare both.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

R = TypeVar("R")
ROWS = 128
"""Rows processed at once: 2,048 float32 features each are 1 MB, which fits the processor's cache."""
HIGHEST = 80.0
"""Upper limit of the scale ratio: exp(88) overflows float32."""
CACHED = 12
"""Number of cached results; the oldest is dropped first. A matrix of 2,048 features takes 34 MB."""

_results: ContextVar[dict[Hashable, tuple[Any, Any]] | None] = ContextVar("results", default=None)


@contextmanager
def sharing() -> Iterator[None]:
    """Cache the results of `shared` functions until the outermost of these blocks ends."""
    if _results.get() is not None:
        yield
        return
    token = _results.set({})
    try:
        yield
    finally:
        _results.reset(token)


def shared(function: Callable[..., R]) -> Callable[..., R]:
    """Make a function return its earlier result for the same arguments within `sharing`; the result must not be modified.

    Numbers and tuples are compared by value, all other arguments by identity.
    """

    @wraps(function)
    def found(*arguments: Any) -> R:
        results = _results.get()
        if results is None:
            return function(*arguments)
        key = (function, *(one if isinstance(one, int | float | tuple) else id(one) for one in arguments))
        if key not in results:
            # The arguments are stored as well: as long as they live, no other object has their identity.
            results[key] = arguments, function(*arguments)
            if len(results) > CACHED:
                del results[next(iter(results))]
        result: R = results[key][1]
        return result

    return found


def unit(features: Tensor) -> Tensor:
    """Return rows scaled to length 1; zero rows stay zero."""
    return torch.nn.functional.normalize(features, dim=1, eps=1e-10)


def lengths(rows: Tensor) -> Tensor:
    """Return the Euclidean length of each row."""
    found: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return found


def row_blocks(rows: Tensor, width: int) -> tuple[Tensor, ...]:
    """Split rows so that `width` float32 values per row take about 32 MB; an exported graph is not split."""
    if torch.compiler.is_exporting():
        return (rows,)
    return torch.split(rows, max(1, min(ROWS, (1 << 23) // width)))


def percentiles(values: Tensor, percents: Sequence[float]) -> list[Tensor]:
    """Return percentiles of all values, whatever their shape, with one selection for all percentiles."""
    found = np.percentile(values.cpu().numpy().ravel(), percents)
    return [torch.tensor(value, dtype=torch.float32, device=values.device) for value in found]


def kept_count(width: int, percentile: float) -> int:
    """Return how many of `width` activations are above a percentile: at least 1, rounded half to even as in the authors' code."""
    return max(1, width - round(width * percentile / 100))


def top_mask(features: Tensor, kept: int) -> Tensor:
    """Return a mask of the `kept` largest values of each row."""
    chosen = features.topk(kept, dim=1, sorted=False).indices
    return torch.zeros_like(features, dtype=torch.bool).scatter(1, chosen, True)


def scale_ratio(features: Tensor, percentile: float) -> Tensor:
    """Return r (N,), the sum of all activations of a row over the sum of its largest."""
    kept = kept_count(features.shape[1], percentile)
    if features.device.type != "cpu" or torch.compiler.is_exporting() or features.requires_grad:
        return ratio_plain(features, kept)
    top = torch.from_numpy(_top_sum(features.numpy(), kept))
    return safe_ratio(features.sum(dim=1), top, features.shape[1] / kept)


def ratio_plain(features: Tensor, kept: int) -> Tensor:
    """Return the ratio computed with torch alone."""
    top = features.topk(kept, dim=1, sorted=False).values.sum(dim=1)
    return safe_ratio(features.sum(dim=1), top, features.shape[1] / kept)


def safe_ratio(total: Tensor, top: Tensor, limit: float) -> Tensor:
    """Return `total / top`, clamped to a range in which exp is finite; 1 for rows without positive activations."""
    # The ratio of non-negative rows never exceeds D / k; signed rows are clamped there.
    bound = min(limit, HIGHEST)
    some = top > 0
    return torch.where(some, (total / torch.where(some, top, 1.0)).clamp(-bound, bound), 1.0)


def _top_sum(array: NDArray[np.float32], kept: int) -> NDArray[np.float32]:
    """Return the sum of the largest values of each row by partial sorting, for which NumPy uses SIMD."""
    first = array.shape[1] - kept
    low = _ramp(array.shape[1])
    block = np.empty((min(ROWS, len(array)), array.shape[1]), np.float32)
    result = np.empty(len(array), np.float32)
    for start in range(0, len(array), ROWS):
        part = np.subtract(array[start : start + ROWS], low, out=block[: len(array) - start])
        part.partition(first, axis=1)
        part[:, first:].sum(axis=1, out=result[start : start + ROWS])
    return result


@cache
def _ramp(width: int) -> NDArray[np.float32]:
    """Return distinct negligible values: partial sorting is slow among equal values, such as the zeros of a ReLU."""
    found: NDArray[np.float32] = np.arange(1, width + 1, dtype=np.float32) * np.finfo(np.float32).tiny
    return found


def kth_largest_products(queries: Tensor, bank: Tensor, ks: Sequence[int]) -> list[Tensor]:
    """Return the k-th largest inner product (N,) of each query with the rows of a bank, for several k; exact."""
    found = [[products[:, -k] for k in ks] for products in _largest_products(queries, bank, ks)]
    return [torch.cat(parts) for parts in zip(*found, strict=True)]


def mean_largest_products(queries: Tensor, bank: Tensor, ks: Sequence[int]) -> list[Tensor]:
    """Return the mean of the k largest inner products (N,) of each query with the rows of a bank, for several k; exact."""
    found = [[products[:, -k:].mean(dim=1) for k in ks] for products in _largest_products(queries, bank, ks)]
    return [torch.cat(parts) for parts in zip(*found, strict=True)]


def _largest_products(queries: Tensor, bank: Tensor, ks: Sequence[int]) -> Iterator[Tensor]:
    """Yield the largest products in blocks of rows; for each k, the k-th largest is at -k and larger ones follow."""
    if queries.device.type != "cpu" or torch.compiler.is_exporting():
        yield (queries @ bank.T).topk(max(ks), dim=1).values.flip(1)
        return
    places = sorted({len(bank) - k for k in ks})
    for part in row_blocks(queries, len(bank)):
        products = (part @ bank.T).numpy()
        products.partition(places, axis=1)
        yield torch.from_numpy(products[:, places[0] :])

"""Numerical functions used by several methods, and a cache of shared results."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

R = TypeVar("R")
ROWS = 128
"""Maximum number of rows processed at once."""
HIGHEST = 80.0
"""Upper limit of the scale ratio: exp(88) overflows float32."""
CACHED = 48
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
    """Return a function that caches its results within `sharing`; results must not be modified.

    Numbers and tuples are compared by value, other arguments by identity; a result is dropped when one of the latter is deleted.
    """

    @wraps(function)
    def found(*arguments: Any) -> R:
        results = _results.get()
        if results is None:
            return function(*arguments)
        objects = [one for one in arguments if not isinstance(one, int | float | tuple)]
        key = (function, *map(id, objects), *(one for one in arguments if isinstance(one, int | float | tuple)))
        if key not in results:
            drop = results.pop
            alive = [weakref.ref(one, lambda _: drop(key, None)) for one in objects]
            results[key] = alive, function(*arguments)
            if len(results) > CACHED:
                del results[next(iter(results))]
        result: R = results[key][1]
        return result

    return found


@shared
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


@shared
def ascending(rows: Tensor) -> Tensor:
    """Return the values of each row in ascending order; cached, so that all settings of a search share one sort."""
    if rows.device.type != "cpu" or torch.compiler.is_exporting():
        return rows.sort(dim=1).values
    return torch.from_numpy(np.sort(rows.numpy(), axis=1))  # many times faster than torch


@shared
def _all_ascending(values: Tensor) -> NDArray[np.float32]:
    return np.sort(values.cpu().numpy(), axis=None)


def percentile_of(values: Tensor, percent: float) -> Tensor:
    """Return a percentile of all values of a tensor."""
    known = _all_ascending(values)
    place = percent / 100 * (len(known) - 1)
    low, high = float(known[math.floor(place)]), float(known[math.ceil(place)])
    return torch.tensor(low + (high - low) * (place % 1), dtype=torch.float32, device=values.device)


def kept_count(width: int, percentile: float) -> int:
    """Return the number of `width` activations above a percentile: at least 1, rounded half to even as in the authors' code."""
    return max(1, width - round(width * percentile / 100))


def scale_ratio(features: Tensor, percentile: float, *, rectified: bool = False) -> Tensor:
    """Return r (N,), the sum of all activations of a row over the sum of its largest; if `rectified`, negative ones count as 0."""
    kept = kept_count(features.shape[1], percentile)
    ordered = ascending(features).clamp(min=0) if rectified else ascending(features)
    return safe_ratio(ordered.sum(dim=1), ordered[:, -kept:].sum(dim=1), features.shape[1] / kept)


def safe_ratio(total: Tensor, top: Tensor, limit: float) -> Tensor:
    """Return `total / top`, clamped to a range in which exp is finite; 1 for rows without positive activations."""
    # The ratio of non-negative rows is at most D / k, to which that of signed rows is clamped.
    bound = min(limit, HIGHEST)
    some = top > 0
    return torch.where(some, (total / torch.where(some, top, 1.0)).clamp(-bound, bound), 1.0)


def largest_products(
    queries: Tensor, bank: Tensor, ks: Sequence[int], pick: Callable[[Tensor], Tensor]
) -> list[Tensor]:
    """Return, for each k, the result (N,) of `pick` on the k largest inner products (N, k) of each query with the rows of a bank.

    The products are in ascending order, so that the k-th largest comes first.
    """
    found, most = [], max(ks)
    for part in row_blocks(queries, len(bank)):
        products = part @ bank.T
        if products.device.type != "cpu" or torch.compiler.is_exporting():
            largest = products.topk(most, dim=1).values.flip(1)
        else:  # partitioning in NumPy is many times faster than torch.topk
            products.numpy().partition(len(bank) - most, axis=1)
            largest = ascending(products[:, len(bank) - most :])
        found.append([pick(largest[:, -k:]) for k in ks])
    return [torch.cat(parts) for parts in zip(*found, strict=True)]

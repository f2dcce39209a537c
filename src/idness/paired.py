"""Tells methods apart on the same images, also in the mean over several OOD sets that share their ID images."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import expit, logit, ndtr, ndtri

from idness.core.checks import check_fraction
from idness.core.errors import InputError
from idness.intervals import Difference, Interval, mean_variance, placements
from idness.metrics import Array, as_scores, count_at_recall, id_rank

Convention = Literal["fpr_at_id_recall", "fpr_at_ood_recall"]
DRAWS = 1000
"""Bootstrap draws: the ends of a 95 % interval then rest on 25 draws each."""
_CELLS = 2_000_000
"""Resampled scores held at once; bounds the memory."""


@dataclass(frozen=True)
class Ranks:
    """Holds where one method's images stand among those of the other side: all that a paired DeLong test needs.

    Args:
        by_id: for each ID image, the weighted mean over the sets of the share of OOD images below it.
        by_ood: for each set and OOD image, the share of ID images above it.
        weights: the weight of each set in the mean; they sum to one.
    """

    by_id: Array
    by_ood: tuple[Array, ...]
    weights: tuple[float, ...]

    @property
    def auroc(self) -> float:
        """The weighted mean AUROC."""
        return float(self.by_id.mean())


def ranks(ids: Array, oods: Sequence[Array], weights: Sequence[float] | None = None) -> Ranks:
    """Compare ID scores with those of one or more OOD sets, whose AUROCs are averaged."""
    if not oods:
        raise InputError("ranks: needs the scores of at least one OOD set, got none")
    shares = np.full(len(oods), 1 / len(oods)) if weights is None else np.asarray(weights, float) / np.sum(weights)
    pairs = [placements(as_scores("ID scores", ids), as_scores("OOD scores", ood)) for ood in oods]
    by_id = np.sum([share * pair[0] for share, pair in zip(shares, pairs, strict=True)], axis=0)
    return Ranks(by_id, tuple(pair[1] for pair in pairs), tuple(float(share) for share in shares))


def mean_auroc_interval(of: Ranks, level: float = 0.95) -> Interval:
    """Compute DeLong's interval for a mean AUROC, on the logit scale; the sets share their ID images."""
    check_fraction("mean_auroc_interval", "level", level)
    value, tail = of.auroc, (1 - level) / 2
    if not 0.0 < value < 1.0:
        bound = tail ** (1 / min(len(of.by_id), *map(len, of.by_ood)))
        return Interval(bound, 1.0) if value >= 1.0 else Interval(0.0, 1 - bound)
    reach = -float(ndtri(tail)) * _error(of.by_id, of.by_ood, of.weights) / (value * (1 - value))
    return Interval(float(expit(logit(value) - reach)), float(expit(logit(value) + reach)))


def mean_auroc_difference(first: Ranks, second: Ranks, level: float = 0.95) -> Difference:
    """Test whether two methods differ in their mean AUROC over the same images, by DeLong's paired test."""
    check_fraction("mean_auroc_difference", "level", level)
    same = len(first.by_id) == len(second.by_id) and [len(part) for part in first.by_ood] == [
        len(part) for part in second.by_ood
    ]
    if not same or first.weights != second.weights:
        raise InputError("mean_auroc_difference: needs both methods' scores of the same images, got different numbers")
    value = first.auroc - second.auroc
    by_ood = [one - other for one, other in zip(first.by_ood, second.by_ood, strict=True)]
    error = _error(first.by_id - second.by_id, by_ood, first.weights)
    if error == 0.0:
        return Difference(value, value, value, 1.0 if value == 0.0 else 0.0)
    reach = -float(ndtri((1 - level) / 2)) * error
    return Difference(value, value - reach, value + reach, 2 * float(ndtr(-abs(value) / error)))


def fpr_draws(
    scores: Mapping[str, tuple[Array, Sequence[Array]]],
    convention: Convention,
    recall: float = 0.95,
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> dict[str, Array]:
    """Compute each method's FPR on each set over bootstrap draws of the images: arrays (draws, sets).

    Every method meets the same drawn images, so the difference of two methods' draws is a paired bootstrap.

    Args:
        scores: by method, the scores of the ID images and of each OOD set; the same images in the same order.
        convention: which images are to be kept at the recall.
        recall: their share.
        draws: how many draws.
        seed: of the random numbers.
    """
    check_fraction("fpr_draws", "recall", recall)
    orders = {name: _Sorted.of(ids, oods) for name, (ids, oods) in scores.items()}
    sizes = {(len(one.ids), *map(len, one.oods)) for one in orders.values()}
    if len(sizes) != 1:
        raise InputError(
            f"fpr_draws: needs every method's scores of the same images, got {len(sizes)} different numbers"
        )
    (size,) = sizes
    found: dict[str, list[Array]] = {name: [] for name in scores}
    for counts in _resamples(size, draws, seed):
        for name, one in orders.items():
            found[name].append(one.fpr(counts, convention, recall))
    return {name: np.concatenate(parts) for name, parts in found.items()}


def difference_of_draws(value: float, first: Array, second: Array, level: float = 0.95) -> Difference:
    """Turn two methods' bootstrap draws of the same images into a paired difference."""
    check_fraction("difference_of_draws", "level", level)
    gaps = first - second
    tail = (1 - level) / 2
    low, high = (float(bound) for bound in np.quantile(gaps, (tail, 1 - tail)))
    one_sided = max(float(min((gaps <= 0).mean(), (gaps >= 0).mean())), 1 / len(gaps))
    return Difference(value, low, high, min(1.0, 2 * one_sided))


@dataclass(frozen=True)
class _Sorted:
    """Holds one method's scores sorted, with the order that sorts them."""

    ids: Array
    id_order: Array
    oods: tuple[Array, ...]
    ood_orders: tuple[Array, ...]

    @classmethod
    def of(cls, ids: Array, oods: Sequence[Array]) -> _Sorted:
        id_order = np.argsort(ids, kind="stable")
        ood_orders = tuple(np.argsort(ood, kind="stable") for ood in oods)
        return cls(ids[id_order], id_order, tuple(o[i] for o, i in zip(oods, ood_orders, strict=True)), ood_orders)

    def fpr(self, counts: Sequence[Array], convention: Convention, recall: float) -> Array:
        """Compute the FPR of each draw (row) on each set (column); counts say how often each image was drawn."""
        id_sums = np.cumsum(counts[0][:, self.id_order], axis=1, dtype=np.int32)
        columns = []
        for ood, order, drawn in zip(self.oods, self.ood_orders, counts[1:], strict=True):
            ood_sums = np.cumsum(drawn[:, order], axis=1, dtype=np.int32)
            if convention == "fpr_at_id_recall":
                threshold = _at_rank(self.ids, id_sums, id_rank(len(self.ids), recall))
                columns.append(1 - _share_up_to(ood, ood_sums, threshold))
            else:
                threshold = _at_rank(ood, ood_sums, count_at_recall(len(ood), recall) - 1)
                columns.append(_share_up_to(self.ids, id_sums, threshold))
        return np.stack(columns, axis=1)


def _at_rank(values: Array, sums: Array, rank: int) -> Array:
    """Read, per draw, the score at a rank from below."""
    read: Array = values[(sums <= rank).sum(axis=1)]
    return read


def _share_up_to(values: Array, sums: Array, threshold: Array) -> Array:
    """Compute, per draw, the share of images that score at most the threshold."""
    place = np.searchsorted(values, threshold, side="right")
    reached = np.where(place > 0, sums[np.arange(len(sums)), np.maximum(place - 1, 0)], 0)
    return reached / len(values)


def _resamples(sizes: Sequence[int], draws: int, seed: int) -> Iterator[list[Array]]:
    """Yield, in blocks of draws, how often each image of each set was drawn."""
    rng = np.random.default_rng(seed)
    block = max(1, min(draws, _CELLS // max(sizes)))
    for start in range(0, draws, block):
        rows = min(block, draws - start)
        yield [_counts(rng, rows, size) for size in sizes]


def _counts(rng: np.random.Generator, rows: int, size: int) -> Array:
    picked = rng.integers(size, size=(rows, size)) + size * np.arange(rows)[:, None]
    return np.bincount(picked.ravel(), minlength=rows * size).reshape(rows, size)


def _error(by_id: Array, by_ood: Sequence[Array], weights: Sequence[float]) -> float:
    parts = [weight**2 * mean_variance(part) for weight, part in zip(weights, by_ood, strict=True)]
    return math.sqrt(mean_variance(by_id) + sum(parts))

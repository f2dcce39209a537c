"""Bootstrap intervals and paired tests, for the mean FPR over OOD sets that share their ID images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from idness.core.checks import check_fraction
from idness.intervals.difference import Difference, Interval, check_same_images, checked
from idness.metrics import Array, Convention, Scores, count_at_recall, id_rank

DRAWS = 2000
"""Bootstrap draws: the ends of a 95 % interval then rest on 50 draws each."""
_HELD = 2_000_000
"""Resampled scores held at once; bounds the memory."""


def mean_fpr_interval(
    convention: Convention,
    id_scores: Scores,
    ood_scores: Sequence[Scores],
    recall: float = 0.95,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Compute a bootstrap interval for the mean of an FPR over OOD sets, of thresholds and counts alike."""
    check_fraction(f"{convention}_interval", "recall", recall)
    check_fraction(f"{convention}_interval", "level", level)
    ids, oods = checked(id_scores, ood_scores)
    ids, oods = np.sort(ids), [np.sort(ood) for ood in oods]
    at_id_recall = convention == "fpr_at_id_recall"
    draw = _draws_at_id_recall if at_id_recall else _draws_at_ood_recall
    shares, draws = draw(np.random.default_rng(seed), ids, oods, recall)
    tail = (1 - level) / 2
    low, high = _quantiles(draws, tail)
    # A bootstrap of "never" or "always" has no spread: the exact binomial bound has.
    bound = tail ** (1 / (min(map(len, oods)) if at_id_recall else len(ids)))
    if (shares <= 0).all():
        high = max(high, 1 - bound)
    if (shares >= 1).all():
        low = min(low, bound)
    return Interval(low, high)


def fpr_draws(
    scores: Mapping[str, tuple[Scores, Sequence[Scores]]],
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
    check_fraction(f"compare_{convention}", "recall", recall)
    sorted_scores = {name: _Sorted.of(*checked(*sides)) for name, sides in scores.items()}
    sizes = [[len(side) for side in (one.ids, *one.oods)] for one in sorted_scores.values()]
    check_same_images(sizes)
    found: dict[str, list[Array]] = {name: [] for name in scores}
    for counts in _resamples(sizes[0], draws, seed):
        for name, one in sorted_scores.items():
            found[name].append(one.fpr(counts, convention, recall))
    return {name: np.concatenate(parts) for name, parts in found.items()}


def difference_of_draws(value: float, first: Array, second: Array, level: float = 0.95) -> Difference:
    """Turn two methods' bootstrap draws of the same images into a paired difference."""
    check_fraction("compare_fpr", "level", level)
    gaps = first - second
    one_sided = max(float(min((gaps <= 0).mean(), (gaps >= 0).mean())), 1 / len(gaps))
    return Difference(value, *_quantiles(gaps, (1 - level) / 2), min(1.0, 2 * one_sided))


def _quantiles(draws: Array, tail: float) -> tuple[float, float]:
    low, high = np.quantile(draws, (tail, 1 - tail))
    return float(low), float(high)


def _resampled_ranks(rng: np.random.Generator, count: int, rank: int) -> Array:
    """Draw the original ranks at which a rank of a bootstrap sample lies.

    The order statistic of resampled ranks is that of uniform numbers, whose law is a Beta: no sample is drawn or sorted.
    """
    uniform = rng.beta(rank + 1, count - rank, size=DRAWS)
    return np.minimum((uniform * count).astype(np.int64), count - 1)


def _draws_at_id_recall(
    rng: np.random.Generator, ids: Array, oods: Sequence[Array], recall: float
) -> tuple[Array, Array]:
    """Draw the mean share of OOD images at or above a threshold that all sets share; with each set's share before its count."""
    thresholds = ids[_resampled_ranks(rng, len(ids), id_rank(len(ids), recall))]
    shares = np.array([1 - np.searchsorted(ood, thresholds, "left") / len(ood) for ood in oods])
    counts = [rng.binomial(len(ood), share) / len(ood) for ood, share in zip(oods, shares, strict=True)]
    return shares, np.mean(counts, axis=0)


def _draws_at_ood_recall(
    rng: np.random.Generator, ids: Array, oods: Sequence[Array], recall: float
) -> tuple[Array, Array]:
    """Draw the mean share of ID images below each set's threshold, the same ID images for all sets."""
    places = [_resampled_ranks(rng, len(ood), count_at_recall(len(ood), recall) - 1) for ood in oods]
    shares = np.array([np.searchsorted(ids, ood[at], "right") / len(ids) for ood, at in zip(oods, places, strict=True)])
    # One draw of the ID images falls between the thresholds as a multinomial does; sums of its parts are the shares.
    bins = np.diff(np.sort(shares, axis=0), axis=0, prepend=0.0, append=1.0)
    counts = rng.multinomial(len(ids), np.clip(bins.T, 0, None))
    return shares, np.cumsum(counts, axis=1)[:, :-1].mean(axis=1) / len(ids)


@dataclass(frozen=True)
class _Sorted:
    """Keeps one method's scores sorted, with the order that sorts them."""

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
                columns.append(1 - _share_up_to(ood, ood_sums, threshold, "left"))
            else:
                threshold = _at_rank(ood, ood_sums, count_at_recall(len(ood), recall) - 1)
                columns.append(_share_up_to(self.ids, id_sums, threshold, "right"))
        return np.stack(columns, axis=1)


def _at_rank(values: Array, sums: Array, rank: int) -> Array:
    """Read, per draw, the score at a rank from below."""
    read: Array = values[(sums <= rank).sum(axis=1)]
    return read


def _share_up_to(values: Array, sums: Array, threshold: Array, side: Literal["left", "right"]) -> Array:
    """Compute, per draw, the share of images that score below the threshold (left), or at most that much (right)."""
    place = np.searchsorted(values, threshold, side=side)
    reached = np.where(place > 0, sums[np.arange(len(sums)), np.maximum(place - 1, 0)], 0)
    return reached / len(values)


def _resamples(sizes: Sequence[int], draws: int, seed: int) -> Iterator[list[Array]]:
    """Yield, in blocks of draws, how often each image of each set was drawn."""
    rng = np.random.default_rng(seed)
    block = max(1, min(draws, _HELD // max(sizes)))
    for start in range(0, draws, block):
        rows = min(block, draws - start)
        yield [_counts(rng, rows, size) for size in sizes]


def _counts(rng: np.random.Generator, rows: int, size: int) -> Array:
    picked = rng.integers(size, size=(rows, size)) + size * np.arange(rows)[:, None]
    return np.bincount(picked.ravel(), minlength=rows * size).reshape(rows, size)

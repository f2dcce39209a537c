"""Bootstrap intervals and paired tests, for the mean FPR over OOD sets that share their ID images."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

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
    shares, draws = draw(seed, ids, oods, recall)
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
    sides = {name: _sorted(*checked(*given)) for name, given in scores.items()}
    sizes = [[len(side.values) for side in one] for one in sides.values()]
    check_same_images(sizes)
    found: dict[str, list[Array]] = {name: [] for name in scores}
    for counts in _resamples(sizes[0], draws, seed):
        for name, one in sides.items():
            found[name].append(_fpr(one, counts, convention, recall))
    return {name: np.concatenate(parts) for name, parts in found.items()}


def difference_of_draws(value: float, first: Array, second: Array, level: float = 0.95) -> Difference:
    """Turn two methods' bootstrap draws of the same images into a paired difference."""
    check_fraction("compare_fpr", "level", level)
    gaps = first - second
    one_sided = max(float(min((gaps <= 0).mean(), (gaps >= 0).mean())), 1 / len(gaps))
    return Difference(value, *_quantiles(gaps, (1 - level) / 2), min(1.0, 2 * one_sided))


def _quantiles(draws: Array, tail: float) -> tuple[float, float]:
    """Compute two quantiles as `np.quantile` does, which takes longer to prepare than to sort."""
    ascending = np.sort(draws)
    return _quantile(ascending, tail), _quantile(ascending, 1 - tail)


def _quantile(ascending: Array, share: float) -> float:
    place = (len(ascending) - 1) * share
    low = int(place)
    first, second, part = float(ascending[low]), float(ascending[min(low + 1, len(ascending) - 1)]), place - low
    gap = second - first
    return first + gap * part if part < 0.5 else second - gap * (1 - part)


@lru_cache(maxsize=64)
def _resampled_ranks(seed: int, sides: tuple[tuple[int, int], ...]) -> tuple[list[_Places], Any]:
    """Draw, for sides of some count, the original ranks at which a rank of a bootstrap sample lies; the same for every method.

    The order statistic of resampled ranks is that of uniform numbers, whose law is a Beta: no sample is drawn or sorted.
    The state that the random numbers are left in comes with it.
    """
    rng = np.random.default_rng(seed)
    found = []
    for count, rank in sides:
        uniform = rng.beta(rank + 1, count - rank, size=DRAWS)
        found.append(_Places.of(np.minimum((uniform * count).astype(np.int64), count - 1)))
    return found, rng.bit_generator.state


@dataclass(frozen=True)
class _Places:
    """Keeps drawn ranks, which are all close together: where they begin and end, and each draw's place between."""

    first: int
    last: int
    draws: Array

    @classmethod
    def of(cls, ranks: Array) -> _Places:
        first = int(ranks.min())
        return cls(first, int(ranks.max()), ranks - first)

    def shares(self, thresholds: Array, others: Array, side: Literal["left", "right"]) -> Array:
        """Compute, per draw, the share of others below its threshold (left), or at most there (right); both are sorted."""
        counts = np.searchsorted(others, thresholds[self.first : self.last + 1], side)
        shares: Array = (counts / len(others))[self.draws]
        return shares


def _going_on(state: Any) -> np.random.Generator:
    """Make random numbers that go on from a state."""
    rng = np.random.default_rng(0)
    rng.bit_generator.state = state
    return rng


def _draws_at_id_recall(seed: int, ids: Array, oods: Sequence[Array], recall: float) -> tuple[Array, Array]:
    """Draw the mean share of OOD images at or above a threshold that all sets share; with each set's share before its count."""
    [places], state = _resampled_ranks(seed, ((len(ids), id_rank(len(ids), recall)),))
    rng = _going_on(state)
    shares = np.array([1 - places.shares(ids, ood, "left") for ood in oods])
    counts = [rng.binomial(len(ood), share) / len(ood) for ood, share in zip(oods, shares, strict=True)]
    return shares, np.mean(counts, axis=0)


def _draws_at_ood_recall(seed: int, ids: Array, oods: Sequence[Array], recall: float) -> tuple[Array, Array]:
    """Draw the mean share of ID images below each set's threshold, the same ID images for all sets."""
    sides = tuple((len(ood), count_at_recall(len(ood), recall) - 1) for ood in oods)
    places, state = _resampled_ranks(seed, sides)
    shares = np.array([at.shares(ood, ids, "right") for ood, at in zip(oods, places, strict=True)])
    # One draw of the ID images falls between the thresholds as a multinomial does; sums of its parts are the shares.
    bins = np.diff(np.sort(shares, axis=0), axis=0, prepend=0.0, append=1.0)
    counts = _going_on(state).multinomial(len(ids), np.clip(bins.T, 0, None))
    return shares, np.cumsum(counts, axis=1)[:, :-1].mean(axis=1) / len(ids)


@dataclass(frozen=True)
class _Side:
    """Keeps a method's scores of one set sorted, with the order that sorts them.

    Counts say how often each image (row) was drawn in each draw (column). Draws differ little in where a rank lies or what a
    threshold cuts off, so only the images there are looked at one by one.
    """

    values: Array
    order: Array

    def at_rank(self, counts: Array, rank: int) -> Array:
        """Read, per draw, the score at a rank from below."""
        size = len(self.values)
        reach = 2 + int(5 * math.sqrt((rank + 1) * (size - rank) / size))  # five standard deviations
        while True:
            low, high = max(0, rank - reach), min(size, rank + reach)
            sums = self._sums(counts, low, high)
            if (sums[:, 0] <= rank).all() and (sums[:, -1] > rank).all():
                read: Array = self.values[low + (sums[:, 1:] <= rank).sum(axis=1)]
                return read
            reach *= 2  # a rare draw

    def share_up_to(self, counts: Array, threshold: Array, side: Literal["left", "right"]) -> Array:
        """Compute, per draw, the share of images that score below the threshold (left), or at most that much (right)."""
        places = np.searchsorted(self.values, threshold, side=side)
        low = int(places.min())
        sums = self._sums(counts, low, int(places.max()))
        share: Array = sums[np.arange(len(sums)), places - low] / len(self.values)
        return share

    def _sums(self, counts: Array, low: int, high: int) -> Array:
        """Count, per draw (row), the drawn images among the lowest `low` ones, the lowest `low + 1`, and so on up to `high`."""
        sums, size = np.empty((counts.shape[1], high - low + 1), np.int32), len(self.order)
        if 2 * low <= size:
            sums[:, 0] = counts[self.order[:low]].sum(axis=0, dtype=np.int32)
        else:  # every draw has as many images as there are
            sums[:, 0] = size - counts[self.order[low:]].sum(axis=0, dtype=np.int32)
        sums[:, 1:] = counts[self.order[low:high]].T
        return np.cumsum(sums, axis=1, dtype=np.int32)


def _sorted(ids: Array, oods: Sequence[Array]) -> list[_Side]:
    orders = [(values, np.argsort(values)) for values in (ids, *oods)]
    return [_Side(values[order], order) for values, order in orders]


def _fpr(sides: Sequence[_Side], counts: Sequence[Array], convention: Convention, recall: float) -> Array:
    """Compute the FPR of each draw (row) on each set (column); the ID side comes first."""
    ids, drawn_ids, pairs = sides[0], counts[0], list(zip(sides[1:], counts[1:], strict=True))
    if convention == "fpr_at_id_recall":
        threshold = ids.at_rank(drawn_ids, id_rank(len(ids.values), recall))
        columns = [1 - ood.share_up_to(drawn, threshold, "left") for ood, drawn in pairs]
    else:
        ranks = [count_at_recall(len(ood.values), recall) - 1 for ood, _ in pairs]
        thresholds = [ood.at_rank(drawn, rank) for (ood, drawn), rank in zip(pairs, ranks, strict=True)]
        columns = [ids.share_up_to(drawn_ids, threshold, "right") for threshold in thresholds]
    return np.stack(columns, axis=1)


def _resamples(sizes: Sequence[int], draws: int, seed: int) -> Iterator[list[Array]]:
    """Yield, in blocks of draws, how often each image (row) of each set was drawn in each draw (column)."""
    rng = np.random.default_rng(seed)
    block = max(1, min(draws, _HELD // max(sizes)))
    for start in range(0, draws, block):
        rows = min(block, draws - start)
        yield [_counts(rng, rows, size) for size in sizes]


def _counts(rng: np.random.Generator, rows: int, size: int) -> Array:
    picked = rng.integers(size, size=(rows, size)) + size * np.arange(rows)[:, None]
    return np.bincount(picked.ravel(), minlength=rows * size).reshape(rows, size).T.astype(np.int32, order="C")

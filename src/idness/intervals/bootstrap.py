"""Intervals and paired bootstrap tests, for the mean FPR over OOD sets that share their ID images."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from idness.core.checks import check_fraction
from idness.intervals.difference import Difference, Interval, check_same_images, checked
from idness.metrics import Array, Convention, Scores, count_at_recall, id_rank

DRAWS = 2000
"""Random draws: the ends of a 95 % interval then rest on 50 draws each."""
_HELD = 2_000_000
"""Resampled scores held at once; bounds the memory."""


def images_needed(recall: float, level: float = 0.95) -> int:
    """Return how many images the threshold must rest on, so that their lowest and highest scores bound the true threshold.

    With fewer, the recall of either extreme score is uncertain by more than the level allows, and no interval exists.

    >>> images_needed(0.95)
    72
    """
    check_fraction("images_needed", "recall", recall)
    check_fraction("images_needed", "level", level)
    return math.ceil(math.log((1 - level) / 2) / math.log(max(recall, 1 - recall)))


def mean_fpr_interval(
    convention: Convention,
    id_scores: Scores,
    ood_scores: Sequence[Scores],
    recall: float = 0.95,
    level: float = 0.95,
    seed: int = 0,
) -> Interval | None:
    """Return an interval for the mean of an FPR over OOD sets, or None if the threshold rests on too few images.

    The number of images below the true threshold is binomial, so the threshold lies in a random gap between two neighbouring
    scores; the rates at either end of the gap follow Clopper and Pearson's Beta distributions. The ends of the interval are
    quantiles over draws of both, which covers slightly more often than the level says.
    """
    check_fraction(f"{convention}_interval", "recall", recall)
    check_fraction(f"{convention}_interval", "level", level)
    ids, oods = checked(id_scores, ood_scores)
    at_id_recall = convention == "fpr_at_id_recall"
    if min([len(ids)] if at_id_recall else [len(ood) for ood in oods]) < images_needed(recall, level):
        return None
    ids, oods, rng = np.sort(ids), [np.sort(ood) for ood in oods], np.random.default_rng(seed)
    if at_id_recall:
        gaps = rng.binomial(len(ids), 1 - recall, DRAWS)
        drawn = [_rates(rng, *_counts_at(-ood[::-1], -ids[::-1], len(ids) - gaps), len(ood)) for ood in oods]
        lows, highs = np.mean(drawn, axis=0)
    else:
        counts = [_counts_at(ids, ood, rng.binomial(len(ood), recall, DRAWS)) for ood in oods]
        lows, highs = _shared_rates(rng, np.array(counts), len(ids))
    tail = (1 - level) / 2
    return Interval(_quantiles(lows, tail)[0], _quantiles(highs, tail)[1])


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
    """Return the paired difference of two methods from their bootstrap draws of the same images."""
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


def _counts_at(others: Array, thresholds: Array, gaps: Array) -> tuple[Array, Array]:
    """Count the others at or below the lower and the upper end of each gap between thresholds; both arrays are sorted."""
    first, last = int(gaps.min()), int(gaps.max())
    ends = np.concatenate(([-np.inf], thresholds, [np.inf]))[first : last + 2]
    counts = np.searchsorted(others, ends, "right")
    return counts[gaps - first], counts[gaps - first + 1]


def _rates(rng: np.random.Generator, low: Array, high: Array, count: int) -> tuple[Array, Array]:
    """Draw the rates behind two counts of the same images: Beta(low, ...) and Beta(high + 1, ...)."""
    parts = [rng.standard_gamma(shape) for shape in (low, high - low + 1, count - high)]
    total = parts[0] + parts[1] + parts[2]
    return parts[0] / total, (parts[0] + parts[1]) / total


def _shared_rates(rng: np.random.Generator, counts: Array, size: int) -> tuple[Array, Array]:
    """Draw the mean rates behind counts (sets, 2, draws) among the same images, as spacings of ordered uniform numbers."""
    ends = np.concatenate((counts[:, 0], counts[:, 1] + 1))
    order = ends.argsort(axis=0)
    steps = np.diff(np.take_along_axis(ends, order, axis=0), axis=0, prepend=0, append=size + 1)
    sums = np.cumsum(rng.standard_gamma(steps), axis=0)
    rates = np.empty(ends.shape)
    np.put_along_axis(rates, order, sums[:-1] / sums[-1], axis=0)
    return rates[: len(counts)].mean(axis=0), rates[len(counts) :].mean(axis=0)


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

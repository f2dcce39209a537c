"""Confidence intervals of the metrics, and tests of whether two methods or runs differ.

A metric may be the mean over several OOD sets. These share their ID images, so their errors are correlated; a single set is
a mean over one. AUROCs are compared by DeLong's method, false-positive rates by a bootstrap.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from idness.core.errors import InputError
from idness.core.options import check_fraction
from idness.metrics import Array, Convention, Scores, all_metrics, as_scores, count_at_recall, id_rank

UNSEEN = 0.25
"""Weight, in images, of one more image at chance level: few images may contain no hard one, and vary too little."""
DRAWS = 2000
"""Random draws: each end of a 95 % interval is then determined by 50 draws."""
BLOCK = 2_000_000
"""Maximum number of resampled scores in memory."""


class Interval(NamedTuple):
    """The lower and upper end of a confidence interval."""

    low: float
    high: float


class Difference(NamedTuple):
    """The difference between two methods or runs, first minus second, with its interval and its two-sided p-value."""

    value: float
    low: float
    high: float
    p_value: float


def auroc_interval(id_scores: Scores, ood_scores: Scores, level: float = 0.95) -> Interval:
    """Return DeLong's interval for the AUROC, computed on the logit scale so that it stays within [0, 1].

    >>> low, high = auroc_interval(range(10, 30), range(20))
    >>> round(low, 2), round(high, 2)
    (0.73, 0.95)
    """
    return mean_auroc_interval(ranks(id_scores, [ood_scores]), level)


def compare_auroc(id_a: Scores, ood_a: Scores, id_b: Scores, ood_b: Scores, level: float = 0.95) -> Difference:
    """Test whether two methods differ in AUROC on the same images, by DeLong's paired test."""
    return mean_auroc_difference(ranks(id_a, [ood_a]), ranks(id_b, [ood_b]), level)


def compare_fpr(
    convention: Convention,
    first: tuple[Scores, Scores],
    second: tuple[Scores, Scores],
    recall: float = 0.95,
    level: float = 0.95,
    seed: int = 0,
) -> Difference | None:
    """Test whether two methods differ in an FPR on the same images, by a paired bootstrap.

    Args:
        convention: `fpr_at_id_recall` or `fpr_at_ood_recall`.
        first: scores of the ID images and of the OOD images by the first method.
        second: the same by the second method.
        recall: the fraction of images to keep or to reject.
        level: level of the interval.
        seed: seed of the random numbers.

    Returns:
        The difference, or None with fewer than `images_needed(recall, level)` images on the side of the threshold.
    """
    draws = fpr_draws({"a": (first[0], [first[1]]), "b": (second[0], [second[1]])}, convention, recall, seed=seed)
    if len(first[0 if convention == "fpr_at_id_recall" else 1]) < images_needed(recall, level):
        return None
    value = all_metrics(*first, recall)[convention] - all_metrics(*second, recall)[convention]
    return difference_of_draws(value, draws["a"][:, 0], draws["b"][:, 0], level)


def compare_runs(first: Sequence[float], second: Sequence[float], level: float = 0.95) -> Difference:
    """Test whether the means of two series of runs differ, by Welch's t-test."""
    from scipy.stats import ttest_ind

    value = float(np.mean(first) - np.mean(second))
    if np.ptp(first) == np.ptp(second) == 0:
        return _normal_difference(value, 0.0, level)
    with warnings.catch_warnings(category=RuntimeWarning, action="ignore"):  # runs may agree in all but the last digits
        found = ttest_ind(first, second, equal_var=False)
    low, high = found.confidence_interval(level)
    return Difference(value, float(low), float(high), float(found.pvalue))


@dataclass(frozen=True)
class Ranks:
    """The positions of one method's images among those of the other side: all that DeLong's intervals and tests need.

    `by_id` is the weighted mean over the sets of the fraction of OOD images below each ID image, `by_ood` the fraction of ID images above
    each OOD image of each set. The weights of the sets sum to one.
    """

    by_id: Array
    by_ood: tuple[Array, ...]
    weights: tuple[float, ...]

    @property
    def auroc(self) -> float:
        """The weighted mean AUROC."""
        return float(self.by_id.mean())


def ranks(id_scores: Scores, ood_scores: Sequence[Scores], weights: Sequence[float] | None = None) -> Ranks:
    """Compare ID scores with those of one or more OOD sets, whose AUROCs are averaged."""
    ids, oods = _checked(id_scores, ood_scores)
    shares = np.full(len(oods), 1 / len(oods)) if weights is None else np.asarray(weights, float) / np.sum(weights)
    order, by_id = np.argsort(ids), np.empty(len(ids))
    pairs = [_shares_below(ids[order], ood) for ood in oods]
    by_id[order] = np.sum([share * below for share, (below, _) in zip(shares, pairs, strict=True)], axis=0)
    return Ranks(by_id, tuple(1 - below for _, below in pairs), tuple(map(float, shares)))


def mean_auroc_interval(of: Ranks, level: float = 0.95) -> Interval:
    """Return DeLong's interval for a mean AUROC, computed on the logit scale so that it stays within [0, 1]."""
    check_fraction("auroc_interval", "level", level)
    value, tail, places = of.auroc, (1 - level) / 2, np.concatenate(of.by_ood)
    if (places == 1).all() or (places == 0).all():
        # A perfect order has no observed variance; use the exact binomial interval for no error in n.
        bound = tail ** (1 / min(len(of.by_id), *map(len, of.by_ood)))
        return Interval(bound, 1.0) if places[0] == 1 else Interval(0.0, 1 - bound)
    error = _standard_error(of.by_id, of.by_ood, of.weights, UNSEEN)
    reach = -NormalDist().inv_cdf(tail) * error / (value * (1 - value))
    return Interval(expit(logit(value) - reach), expit(logit(value) + reach))


def mean_auroc_difference(first: Ranks, second: Ranks, level: float = 0.95) -> Difference:
    """Test whether two methods differ in their mean AUROC over the same images, by DeLong's paired test."""
    check_fraction("compare_auroc", "level", level)
    _check_same_images([[len(side) for side in (one.by_id, *one.by_ood)] for one in (first, second)])
    by_ood = [one - other for one, other in zip(first.by_ood, second.by_ood, strict=True)]
    error = _standard_error(first.by_id - second.by_id, by_ood, first.weights)
    return _normal_difference(first.auroc - second.auroc, error, level)


def images_needed(recall: float, level: float = 0.95) -> int:
    """Return how many images are needed for an interval of a false-positive rate.

    With fewer images on the side of the threshold, the lowest and highest scores do not bound the true threshold at this level.

    >>> images_needed(0.95)
    72
    """
    check_fraction("images_needed", "recall", recall)
    check_fraction("images_needed", "level", level)
    return math.ceil(math.log((1 - level) / 2) / math.log(max(recall, 1 - recall)))


def fpr_intervals(
    convention: Convention,
    id_scores: Scores,
    ood_scores: Sequence[Scores],
    recall: float = 0.95,
    level: float = 0.95,
    seed: int = 0,
) -> list[Interval | None]:
    """Return an interval for an FPR on each OOD set and, last, for its mean over the sets; `None` for too few images.

    The number of images below the true threshold is binomial, so the threshold lies in a random gap between two neighbouring
    scores; the rates at either end of the gap follow Clopper and Pearson's Beta distributions. The ends of an interval are
    quantiles over draws of both, so that the coverage is slightly above the level.
    """
    ids, oods = _checked(id_scores, ood_scores)
    at_id_recall, needed = convention == "fpr_at_id_recall", images_needed(recall, level)
    few = [len(side) < needed for side in ([ids] * len(oods) if at_id_recall else oods)]
    ids, oods, rng = np.sort(ids), [np.sort(ood) for ood in oods], np.random.default_rng(seed)
    if at_id_recall:
        gaps = rng.binomial(len(ids), 1 - recall, DRAWS)
        counts = [_counts_at(-ood[::-1], -ids[::-1], len(ids) - gaps) for ood in oods]
        each = [_rates(rng, np.array([pair]), len(ood)) for pair, ood in zip(counts, oods, strict=True)]
        drawn = np.concatenate(each)
    else:
        counts = [_counts_at(ids, ood, rng.binomial(len(ood), recall, DRAWS)) for ood in oods]
        drawn = _rates(rng, np.array(counts), len(ids))
    lows, highs = np.concatenate((drawn, drawn.mean(axis=0, keepdims=True))).swapaxes(0, 1)
    tail = (1 - level) / 2
    ends = zip(np.quantile(lows, tail, axis=1), np.quantile(highs, 1 - tail, axis=1), [*few, any(few)], strict=True)
    return [None if missing else Interval(float(low), float(high)) for low, high, missing in ends]


def fpr_draws(
    scores: Mapping[str, tuple[Scores, Sequence[Scores]]],
    convention: Convention,
    recall: float = 0.95,
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> dict[str, Array]:
    """Return each method's FPR on each set over bootstrap draws of the images, as arrays (draws, sets).

    `scores` are, by method, those of the ID images and of each OOD set, in the same order. All methods are given the same drawn images,
    so the difference of two methods' draws is a paired bootstrap.
    """
    check_fraction(f"compare_{convention}", "recall", recall)
    sides = {name: _checked(*given) for name, given in scores.items()}
    sizes = [[len(ids), *map(len, oods)] for ids, oods in sides.values()]
    _check_same_images(sizes)
    rng, block = np.random.default_rng(seed), max(1, min(draws, BLOCK // max(sizes[0])))
    found: dict[str, list[Array]] = {name: [] for name in scores}
    for start in range(0, draws, block):
        rows = min(block, draws - start)
        picked = [rng.integers(size, size=(rows, size)) for size in sizes[0]]
        for name, (ids, oods) in sides.items():
            drawn = [ood[places] for ood, places in zip(oods, picked[1:], strict=True)]
            found[name].append(_fpr(ids[picked[0]], drawn, convention, recall))
    return {name: np.concatenate(parts) for name, parts in found.items()}


def difference_of_draws(value: float, first: Array, second: Array, level: float = 0.95) -> Difference:
    """Return the paired difference of two methods from their bootstrap draws of the same images."""
    gaps = first - second
    one_sided = max(float(min((gaps <= 0).mean(), (gaps >= 0).mean())), 1 / len(gaps))
    low, high = np.quantile(gaps, [(1 - level) / 2, 1 - (1 - level) / 2])
    return Difference(value, float(low), float(high), min(1.0, 2 * one_sided))


def _normal_difference(value: float, error: float, level: float) -> Difference:
    if error == 0.0:
        return Difference(value, value, value, 1.0 if value == 0.0 else 0.0)
    reach = -NormalDist().inv_cdf((1 - level) / 2) * error
    return Difference(value, value - reach, value + reach, math.erfc(abs(value) / error / math.sqrt(2)))


def _checked(id_scores: Scores, ood_scores: Sequence[Scores]) -> tuple[Array, list[Array]]:
    if not len(ood_scores):
        raise InputError("intervals: needs the scores of at least one OOD set, got none")
    return as_scores("ID scores", id_scores), [as_scores("OOD scores", ood) for ood in ood_scores]


def _check_same_images(sizes: Sequence[Sequence[int]]) -> None:
    """Refuse methods with different numbers of scores; the ID images come first."""
    for other in sizes[1:]:
        if other != sizes[0]:
            raise InputError(
                f"a paired test needs scores of the same images, got {sizes[0]} and {other} (ID, then OOD)"
            )


def _shares_below(ids: Array, ood: Array) -> tuple[Array, Array]:
    """Return the fraction of OOD scores below each of the sorted ID scores, and that of ID scores below each OOD score; ties count half."""
    left, right = (np.searchsorted(ids, ood, side) for side in ("left", "right"))
    # An OOD score is below all ID scores from its place on, so one search gives both.
    places = np.bincount(np.concatenate((left, right)), minlength=len(ids) + 1)
    return np.cumsum(places[:-1]) / (2 * len(ood)), (left + right) / (2 * len(ids))


def _standard_error(by_id: Array, by_ood: Sequence[Array], weights: Sequence[float], unseen: float = 0.0) -> float:
    def variance_of_mean(values: Array) -> float:
        # Of one value: at most that of a coin.
        seen = float(values.var(ddof=1) / len(values)) if len(values) > 1 else 0.25
        return seen + unseen * ((float(values.mean()) - 0.5) / len(values)) ** 2

    parts = [weight**2 * variance_of_mean(part) for weight, part in zip(weights, by_ood, strict=True)]
    return math.sqrt(variance_of_mean(by_id) + sum(parts))


def _counts_at(others: Array, thresholds: Array, gaps: Array) -> tuple[Array, Array]:
    """Count the others at or below the lower and the upper end of each gap between thresholds; both arrays are sorted."""
    ends, first = np.concatenate(([-np.inf], thresholds, [np.inf])), gaps.min()
    counts = np.searchsorted(others, ends[first : gaps.max() + 2], "right")
    return counts[gaps - first], counts[gaps - first + 1]


def _rates(rng: np.random.Generator, counts: Array, size: int) -> Array:
    """Draw the rates behind counts (sets, 2, draws) among the same images, as spacings of ordered uniform numbers.

    The rates behind the counts `low` and `high` of one set are Beta(low, ...) and Beta(high + 1, ...).
    """
    ends = np.concatenate((counts[:, 0], counts[:, 1] + 1))
    order = ends.argsort(axis=0)
    steps = np.diff(np.take_along_axis(ends, order, axis=0), axis=0, prepend=0, append=size + 1)
    sums = np.cumsum(rng.standard_gamma(steps), axis=0)
    rates = np.empty(ends.shape)
    np.put_along_axis(rates, order, sums[:-1] / sums[-1], axis=0)
    return rates.reshape(2, *counts.shape[::2]).swapaxes(0, 1)


def _fpr(ids: Array, oods: Sequence[Array], convention: Convention, recall: float) -> Array:
    """Return the FPR of each draw (row) on each set (column), from the drawn scores (draws, images)."""

    def at_rank(drawn: Array, rank: int) -> Array:
        return np.partition(drawn, rank, axis=1)[:, rank, None]

    if convention == "fpr_at_id_recall":
        threshold = at_rank(ids, id_rank(ids.shape[1], recall))
        accepted = [ood >= threshold for ood in oods]
    else:
        thresholds = [at_rank(ood, count_at_recall(ood.shape[1], recall) - 1) for ood in oods]
        accepted = [ids <= threshold for threshold in thresholds]
    # Bytes are counted faster than booleans are averaged.
    columns = [part.view(np.uint8).sum(axis=1, dtype=np.int32) / part.shape[1] for part in accepted]
    return np.stack(columns, axis=1)


def logit(share: float) -> float:
    """Return log(p / (1 - p)); importing SciPy takes longer than most commands."""
    return math.log(share) - math.log1p(-share)


def expit(value: float) -> float:
    """Return the inverse of `logit`; exp() of a large number would overflow."""
    small = math.exp(-abs(value))
    return (1 if value >= 0 else small) / (1 + small)

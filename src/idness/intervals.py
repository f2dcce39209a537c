"""Error bars: how far a metric may be off for the images it was measured on, and whether two methods differ."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import expit, logit, ndtr, ndtri

from idness.core.checks import check_fraction
from idness.core.errors import InputError
from idness.metrics import Array, Scores, as_scores, auroc, count_at_recall, id_rank, sorted_pair

DRAWS = 2000
"""Bootstrap draws: the ends of a 95 % interval then rest on 50 draws each."""


class Interval(NamedTuple):
    """Is a confidence interval."""

    low: float
    high: float


class Difference(NamedTuple):
    """Is a paired difference, first minus second, with its interval and the p-value of "no difference"."""

    value: float
    low: float
    high: float
    p_value: float


def auroc_interval(id_scores: Scores, ood_scores: Scores, level: float = 0.95) -> Interval:
    """Compute DeLong's interval for the AUROC, on the logit scale so that it stays within [0, 1]."""
    check_fraction("auroc_interval", "level", level)
    ids, oods = as_scores("ID scores", id_scores), as_scores("OOD scores", ood_scores)
    value = auroc(ids, oods)
    tail = (1 - level) / 2
    if value in (0.0, 1.0):
        # Perfect order has no observed variance. As an exact binomial interval for "no error in n" has it:
        bound = tail ** (1 / min(len(ids), len(oods)))
        return Interval(bound, 1.0) if value == 1.0 else Interval(0.0, 1 - bound)
    by_id, by_ood = placements(ids, oods)
    error = math.sqrt(mean_variance(by_id) + mean_variance(by_ood)) / (value * (1 - value))
    centre, reach = logit(value), -ndtri(tail) * error
    return Interval(float(expit(centre - reach)), float(expit(centre + reach)))


def fpr_at_id_recall_interval(
    id_scores: Scores, ood_scores: Scores, recall: float = 0.95, level: float = 0.95, seed: int = 0
) -> Interval:
    """Compute a bootstrap interval for `fpr_at_id_recall`, over both the ID threshold and the OOD count."""
    check_fraction("fpr_at_id_recall_interval", "recall", recall)
    ids, oods = sorted_pair(id_scores, ood_scores)
    rng = np.random.default_rng(seed)
    ranks = _resampled_ranks(rng, len(ids), id_rank(len(ids), recall))
    shares = 1 - np.searchsorted(oods, ids[ranks], side="right") / len(oods)
    return _percentile_interval(rng.binomial(len(oods), shares) / len(oods), shares.mean(), len(oods), level)


def fpr_at_ood_recall_interval(
    id_scores: Scores, ood_scores: Scores, recall: float = 0.95, level: float = 0.95, seed: int = 0
) -> Interval:
    """Compute a bootstrap interval for `fpr_at_ood_recall`, over both the OOD threshold and the ID count."""
    check_fraction("fpr_at_ood_recall_interval", "recall", recall)
    ids, oods = sorted_pair(id_scores, ood_scores)
    rng = np.random.default_rng(seed)
    ranks = _resampled_ranks(rng, len(oods), count_at_recall(len(oods), recall) - 1)
    shares = np.searchsorted(ids, oods[ranks], side="right") / len(ids)
    return _percentile_interval(rng.binomial(len(ids), shares) / len(ids), shares.mean(), len(ids), level)


def compare_auroc(id_a: Scores, ood_a: Scores, id_b: Scores, ood_b: Scores, level: float = 0.95) -> Difference:
    """Test whether two methods differ in AUROC on the same images, by DeLong's paired test."""
    check_fraction("compare_auroc", "level", level)
    (first_id, first_ood), (second_id, second_ood) = _paired(id_a, ood_a, id_b, ood_b)
    a_by_id, a_by_ood = placements(first_id, first_ood)
    b_by_id, b_by_ood = placements(second_id, second_ood)
    value = float(a_by_id.mean() - b_by_id.mean())
    error = math.sqrt(mean_variance(a_by_id - b_by_id) + mean_variance(a_by_ood - b_by_ood))
    if error == 0.0:
        return Difference(value, value, value, 1.0 if value == 0.0 else 0.0)
    reach = -float(ndtri((1 - level) / 2)) * error
    return Difference(value, value - reach, value + reach, 2 * float(ndtr(-abs(value) / error)))


def compare_fpr_at_id_recall(
    id_a: Scores, ood_a: Scores, id_b: Scores, ood_b: Scores, recall: float = 0.95, level: float = 0.95, seed: int = 0
) -> Difference:
    """Test whether two methods differ in `fpr_at_id_recall` on the same images, by a paired bootstrap."""
    check_fraction("compare_fpr_at_id_recall", "recall", recall)
    pairs = _paired(id_a, ood_a, id_b, ood_b)

    def value(ids: Array, oods: Array) -> float:
        rank = id_rank(len(ids), recall)
        return float((oods > np.partition(ids, rank)[rank]).mean())

    return _paired_bootstrap(pairs, value, level, seed)


def compare_fpr_at_ood_recall(
    id_a: Scores, ood_a: Scores, id_b: Scores, ood_b: Scores, recall: float = 0.95, level: float = 0.95, seed: int = 0
) -> Difference:
    """Test whether two methods differ in `fpr_at_ood_recall` on the same images, by a paired bootstrap."""
    check_fraction("compare_fpr_at_ood_recall", "recall", recall)
    pairs = _paired(id_a, ood_a, id_b, ood_b)

    def value(ids: Array, oods: Array) -> float:
        rank = count_at_recall(len(oods), recall) - 1
        return float((ids <= np.partition(oods, rank)[rank]).mean())

    return _paired_bootstrap(pairs, value, level, seed)


def placements(ids: Array, oods: Array) -> tuple[Array, Array]:
    """Compute, for each ID image, the share of OOD images below it, and for each OOD image the share of ID above it."""
    low, high = np.sort(ids), np.sort(oods)
    by_id = (np.searchsorted(high, ids, side="left") + np.searchsorted(high, ids, side="right")) / (2 * len(high))
    by_ood = 1 - (np.searchsorted(low, oods, side="left") + np.searchsorted(low, oods, side="right")) / (2 * len(low))
    return by_id, by_ood


def mean_variance(values: Array) -> float:
    """Estimate the variance of a mean; that of a single value is not known and counts as that of a coin."""
    return float(values.var(ddof=1) / len(values)) if len(values) > 1 else 0.25


def _resampled_ranks(rng: np.random.Generator, count: int, rank: int) -> Array:
    """Draw the original ranks at which a rank of a bootstrap sample lies.

    The order statistic of resampled ranks is that of uniform numbers, whose law is a Beta: no sample is drawn or sorted.
    """
    uniform = rng.beta(rank + 1, count - rank, size=DRAWS)
    return np.minimum((uniform * count).astype(np.int64), count - 1)


def _percentile_interval(draws: Array, share: float, count: int, level: float) -> Interval:
    tail = (1 - level) / 2
    low, high = (float(value) for value in np.quantile(draws, (tail, 1 - tail)))
    # A bootstrap of "never" or "always" has no spread: the exact binomial bound has.
    if share <= 0:
        high = max(high, 1 - tail ** (1 / count))
    if share >= 1:
        low = min(low, tail ** (1 / count))
    return Interval(low, high)


def _paired(
    id_a: Scores, ood_a: Scores, id_b: Scores, ood_b: Scores
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    first = as_scores("ID scores", id_a), as_scores("OOD scores", ood_a)
    second = as_scores("ID scores", id_b), as_scores("OOD scores", ood_b)
    for side, one, other in zip(("ID", "OOD"), first, second, strict=True):
        if len(one) != len(other):
            raise InputError(
                f"a paired test needs both methods' scores of the same {side} images, got {len(one)} and {len(other)}"
            )
    return first, second


def _paired_bootstrap(
    pairs: tuple[tuple[Array, Array], tuple[Array, Array]],
    value: Callable[[Array, Array], float],
    level: float,
    seed: int,
) -> Difference:
    check_fraction("paired bootstrap", "level", level)
    (id_a, ood_a), (id_b, ood_b) = pairs
    rng = np.random.default_rng(seed)
    draws = np.empty(DRAWS)
    for draw in range(DRAWS):
        # The same images are drawn for both methods: what they share cancels.
        ids, oods = rng.integers(len(id_a), size=len(id_a)), rng.integers(len(ood_a), size=len(ood_a))
        draws[draw] = value(id_a[ids], ood_a[oods]) - value(id_b[ids], ood_b[oods])
    tail = (1 - level) / 2
    low, high = (float(bound) for bound in np.quantile(draws, (tail, 1 - tail)))
    one_sided = min((draws <= 0).mean(), (draws >= 0).mean())
    p_value = min(1.0, 2 * max(float(one_sided), 1 / DRAWS))
    return Difference(value(id_a, ood_a) - value(id_b, ood_b), low, high, p_value)

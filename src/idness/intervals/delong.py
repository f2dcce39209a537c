"""DeLong's intervals and paired tests, for the mean AUROC over OOD sets that share their ID images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from idness.core.checks import check_fraction
from idness.core.errors import InputError
from idness.core.normal import expit, logit, normal_quantile
from idness.intervals.difference import Difference, Interval, check_same_images, checked, normal_difference
from idness.metrics import Array, Scores

UNSEEN = 0.25
"""Weight, in images, of one more image at chance level: few images may contain no hard one, and vary too little."""


@dataclass(frozen=True)
class Ranks:
    """Keeps where one method's images stand among those of the other side: all that DeLong's intervals and tests need.

    For each ID image, the mean over the sets, by their weights, of the share of OOD images below it; for each set and OOD image,
    the share of ID images above it. The weights sum to one.
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
    ids, oods = checked(id_scores, ood_scores)
    shares = np.full(len(oods), 1 / len(oods)) if weights is None else np.asarray(weights, float) / np.sum(weights)
    order = np.argsort(ids)
    pairs = [_shares_below(ids[order], ood) for ood in oods]
    by_id = np.empty(len(ids))
    by_id[order] = np.sum([share * below for share, (below, _) in zip(shares, pairs, strict=True)], axis=0)
    return Ranks(by_id, tuple(1 - below for _, below in pairs), tuple(map(float, shares)))


def mean_auroc_interval(of: Ranks, level: float = 0.95) -> Interval:
    """Compute DeLong's interval for a mean AUROC, on the logit scale so that it stays within [0, 1]."""
    check_fraction("auroc_interval", "level", level)
    value, tail, places = of.auroc, (1 - level) / 2, np.concatenate(of.by_ood)
    if (places == 1).all() or (places == 0).all():
        # Perfect order has no observed variance. As an exact binomial interval for "no error in n" has it:
        bound = tail ** (1 / min(len(of.by_id), *map(len, of.by_ood)))
        return Interval(bound, 1.0) if places[0] == 1 else Interval(0.0, 1 - bound)
    error = _standard_error(of.by_id, of.by_ood, of.weights, UNSEEN)
    reach = -normal_quantile(tail) * error / (value * (1 - value))
    return Interval(expit(logit(value) - reach), expit(logit(value) + reach))


def mean_auroc_difference(first: Ranks, second: Ranks, level: float = 0.95) -> Difference:
    """Test whether two methods differ in their mean AUROC over the same images, by DeLong's paired test."""
    check_fraction("compare_auroc", "level", level)
    check_same_images([[len(side) for side in (one.by_id, *one.by_ood)] for one in (first, second)])
    if first.weights != second.weights:
        raise InputError(f"compare_auroc: the sets must weigh the same, got {first.weights} and {second.weights}")
    by_ood = [one - other for one, other in zip(first.by_ood, second.by_ood, strict=True)]
    error = _standard_error(first.by_id - second.by_id, by_ood, first.weights)
    return normal_difference(first.auroc - second.auroc, error, level)


def _shares_below(ascending: Array, oods: Array) -> tuple[Array, Array]:
    """Compute the share of OOD scores below each of the ID scores, which are sorted, and that of ID scores below each OOD score.

    Ties count half. An OOD score is below all ID scores from its place on, so one search gives both.
    """
    left, right = (np.searchsorted(ascending, oods, side) for side in ("left", "right"))
    count = len(ascending)
    places = np.bincount(np.concatenate((left, right)), minlength=count + 1)
    return np.cumsum(places[:count]) / (2 * len(oods)), (left + right) / (2 * count)


def _variance_of_mean(values: Array, unseen: float) -> float:
    """Estimate the variance of a mean; that of a single value is unknown and counts as that of a coin."""
    seen = float(values.var(ddof=1) / len(values)) if len(values) > 1 else 0.25
    return seen + unseen * ((float(values.mean()) - 0.5) / len(values)) ** 2


def _standard_error(by_id: Array, by_ood: Sequence[Array], weights: Sequence[float], unseen: float = 0.0) -> float:
    parts = [weight**2 * _variance_of_mean(part, unseen) for weight, part in zip(weights, by_ood, strict=True)]
    return math.sqrt(_variance_of_mean(by_id, unseen) + sum(parts))

"""Intervals and differences: what every test gives back, and what all of them check."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from idness.core.errors import InputError
from idness.core.normal import normal_quantile, normal_share
from idness.metrics import Array, Scores, as_scores


class Interval(NamedTuple):
    """Says between which values the truth lies, with the confidence that was asked for."""

    low: float
    high: float


class Difference(NamedTuple):
    """Says how far two methods or runs are apart, first minus second, and how likely chance alone sets them so far apart."""

    value: float
    low: float
    high: float
    p_value: float


def compare_runs(first: Sequence[float], second: Sequence[float], level: float = 0.95) -> Difference:
    """Test whether the means of two series of runs differ, which may vary differently, by Welch's t-test."""
    from scipy.stats import ttest_ind

    value = float(np.mean(first) - np.mean(second))
    if np.ptp(first) == np.ptp(second) == 0:
        return normal_difference(value, 0.0, level)
    with warnings.catch_warnings():  # runs that agree in all but the last digits are no news
        warnings.filterwarnings("ignore", message="Precision loss", category=RuntimeWarning)
        found = ttest_ind(first, second, equal_var=False)
    low, high = found.confidence_interval(level)
    return Difference(value, float(low), float(high), float(found.pvalue))


def normal_difference(value: float, error: float, level: float) -> Difference:
    """Turn a difference and its standard error into an interval and a p-value."""
    if error == 0.0:
        return Difference(value, value, value, 1.0 if value == 0.0 else 0.0)
    reach = -normal_quantile((1 - level) / 2) * error
    return Difference(value, value - reach, value + reach, 2 * normal_share(-abs(value) / error))


def checked(id_scores: Scores, ood_scores: Sequence[Scores]) -> tuple[Array, list[Array]]:
    """Check the scores of one method: of the ID images and of each OOD set."""
    if not len(ood_scores):
        raise InputError("intervals: need the scores of at least one OOD set, got none")
    return as_scores("ID scores", id_scores), [as_scores("OOD scores", ood) for ood in ood_scores]


def check_same_images(sizes: Sequence[Sequence[int]]) -> None:
    """Refuse methods that were not given scores of the same numbers of images, ID first."""
    for other in sizes[1:]:
        for place, (here, there) in enumerate(zip_longest(sizes[0], other, fillvalue=0)):
            if here != there:
                side = "OOD" if place else "ID"
                raise InputError(
                    f"a paired test needs both methods' scores of the same {side} images, got {here} and {there}"
                )

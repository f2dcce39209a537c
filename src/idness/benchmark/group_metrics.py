"""Metrics of single sets and their plain means over a group, each with its error bar."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import expit, logit, ndtri

from idness.benchmark.results import METRICS, Metrics
from idness.intervals import DRAWS, auroc_interval, fpr_at_id_recall_interval, fpr_at_ood_recall_interval
from idness.metrics import Array, all_metrics, count_at_recall, id_rank

TAIL = 0.025


def set_metrics(known: Array, unknown: Array, recall: float = 0.95, seed: int = 0) -> Metrics:
    """Compute the five metrics of one set and the intervals of three of them."""
    values = all_metrics(known, unknown, recall)
    intervals = {
        "auroc": auroc_interval(known, unknown),
        "fpr_at_id_recall": fpr_at_id_recall_interval(known, unknown, recall, seed=seed),
        "fpr_at_ood_recall": fpr_at_ood_recall_interval(known, unknown, recall, seed=seed),
    }
    return Metrics(**values, intervals={name: (found.low, found.high) for name, found in intervals.items()})


def group_metrics(
    known: Array, unknown: Sequence[Array], parts: Sequence[Metrics], recall: float = 0.95, seed: int = 0
) -> Metrics:
    """Average the metrics of a group's sets; the intervals are of that average, with the ID images shared by all sets.

    Args:
        known: scores of the ID images.
        unknown: scores of each set of the group.
        parts: the metrics of each set of the group.
        recall: the recall at which the false-positive rates were taken.
        seed: of the bootstrap.
    """
    values = {name: float(np.mean([getattr(part, name) for part in parts])) for name in METRICS}
    if len(parts) == 1:
        return Metrics(**values, intervals=parts[0].intervals)
    ids, oods = np.sort(known), [np.sort(scores) for scores in unknown]
    intervals = {
        "auroc": _auroc(ids, oods, values["auroc"]),
        "fpr_at_id_recall": _quantiles(_draw_at_id_recall(ids, oods, recall, seed)),
        "fpr_at_ood_recall": _quantiles(_draw_at_ood_recall(ids, oods, recall, seed)),
    }
    return Metrics(**values, intervals=intervals)


def _auroc(ids: Array, oods: Sequence[Array], value: float) -> tuple[float, float]:
    """Compute DeLong's interval of a mean of AUROCs, on the logit scale; the part that comes from the ID images adds up over the sets."""
    if not 0 < value < 1:
        lows_highs = np.array([auroc_interval(ids, scores) for scores in oods])
        return float(lows_highs[:, 0].mean()), float(lows_highs[:, 1].mean())
    by_id = np.mean([_share_below(scores, ids) for scores in oods], axis=0)
    variance = _mean_variance(by_id)
    variance += sum(_mean_variance(_share_below(ids, scores)) for scores in oods) / len(oods) ** 2
    centre, reach = logit(value), -ndtri(TAIL) * math.sqrt(variance) / (value * (1 - value))
    return float(expit(centre - reach)), float(expit(centre + reach))


def _share_below(reference: Array, values: Array) -> Array:
    """Compute the share of a sorted reference that lies below each value, ties counting half."""
    return (np.searchsorted(reference, values, "left") + np.searchsorted(reference, values, "right")) / (
        2 * len(reference)
    )


def _mean_variance(values: Array) -> float:
    return float(values.var(ddof=1) / len(values)) if len(values) > 1 else 0.25


def _draw_at_id_recall(ids: Array, oods: Sequence[Array], recall: float, seed: int) -> Array:
    """Draw means of the share of OOD images above a threshold that all sets share."""
    rng = np.random.default_rng(seed)
    thresholds = ids[_ranks(rng, len(ids), id_rank(len(ids), recall))]
    shares = [1 - np.searchsorted(scores, thresholds, "right") / len(scores) for scores in oods]
    draws = [rng.binomial(len(scores), share) / len(scores) for scores, share in zip(oods, shares, strict=True)]
    return np.asarray(np.mean(draws, axis=0))


def _draw_at_ood_recall(ids: Array, oods: Sequence[Array], recall: float, seed: int) -> Array:
    """Draw means of the share of ID images below each set's threshold, the same ID images for all sets."""
    rng = np.random.default_rng(seed)
    shares = np.empty((DRAWS, len(oods)))
    for place, scores in enumerate(oods):
        ranks = _ranks(rng, len(scores), count_at_recall(len(scores), recall) - 1)
        shares[:, place] = np.searchsorted(ids, scores[ranks], "right") / len(ids)
    # One draw of the ID images falls between the thresholds as a multinomial does; sums of its parts are the shares.
    ordered = np.sort(shares, axis=1)
    bins = np.diff(ordered, axis=1, prepend=0.0, append=1.0)
    counts = rng.multinomial(len(ids), np.clip(bins, 0, None))
    return np.asarray(np.cumsum(counts, axis=1)[:, :-1].mean(axis=1) / len(ids))


def _ranks(rng: np.random.Generator, count: int, rank: int) -> Array:
    """Draw the ranks at which an order statistic of a bootstrap sample lies; its law is a Beta, so no sample is drawn."""
    return np.minimum((rng.beta(rank + 1, count - rank, size=DRAWS) * count).astype(np.int64), count - 1)


def _quantiles(draws: Array) -> tuple[float, float]:
    low, high = np.quantile(draws, (TAIL, 1 - TAIL))
    return float(low), float(high)

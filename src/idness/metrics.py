"""Metrics of separation, from ID-ness scores: higher means more in-distribution, results are in [0, 1].

"FPR@95" means two things in this field, up to 20 points apart, so no function here is called that:
`fpr_at_id_recall` keeps 95 % of the ID images and counts the OOD images that pass;
`fpr_at_ood_recall` catches 95 % of the OOD images and counts the ID images that are lost.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from idness.core.checks import check_fraction
from idness.core.errors import InputError

Scores = Any
"""A one-dimensional tensor, array or sequence of numbers."""
Array = NDArray[Any]

Convention = Literal["fpr_at_id_recall", "fpr_at_ood_recall"]
"""Which images are to be kept at the recall of a false-positive rate."""

FPRS: tuple[Convention, ...] = ("fpr_at_id_recall", "fpr_at_ood_recall")
"""The metrics of which less is better."""
WITH_INTERVAL = ("auroc", *FPRS)
NAMES = (*WITH_INTERVAL, "aupr_in", "aupr_out")
ALIKE = 0.9
"""The share of ID images with one and the same score from which on a detector is degenerate."""
_WORDS = {
    "auroc": ("AUROC", "chance that an ID image scores above an OOD image; higher is better"),
    "fpr_at_id_recall": (
        "FPR at {recall} ID recall",
        "share of OOD images accepted when {recall} of the ID images are; lower is better",
    ),
    "fpr_at_ood_recall": (
        "FPR at {recall} OOD recall",
        "share of ID images rejected when {recall} of the OOD images are; lower is better",
    ),
    "aupr_in": ("AUPR, ID positive", "area under the precision-recall curve, ID positive; higher is better"),
    "aupr_out": ("AUPR, OOD positive", "area under the precision-recall curve, OOD positive; higher is better"),
}


def auroc(id_scores: Scores, ood_scores: Scores) -> float:
    """Compute the chance that an ID image scores above an OOD image, ties counting one half.

    >>> auroc([3.0, 2.0], [1.0, 2.0])
    0.875
    """
    return _auroc(*sorted_pair(id_scores, ood_scores))


def fpr_at_id_recall(id_scores: Scores, ood_scores: Scores, recall: float = 0.95) -> float:
    """Compute the share of OOD images accepted when this share of the ID images is.

    ID is positive. The threshold is the ID score at rank round((1 - recall) N) from below; OOD images at or above it
    are accepted, so that ties count against a detector. Where no OOD image has just that score, as in the paper's CIFAR
    tables, this is what the code of ASH, ReAct and DICE gives.
    """
    check_fraction("fpr_at_id_recall", "recall", recall)
    return _fpr_at_id_recall(*sorted_pair(id_scores, ood_scores), recall)


def fpr_at_ood_recall(id_scores: Scores, ood_scores: Scores, recall: float = 0.95) -> float:
    """Compute the share of ID images rejected when this share of the OOD images is.

    OOD is positive. The threshold is the first point of the ROC curve that reaches the recall; images at or below it
    are rejected. OpenOOD counts so, and with it the paper's near/far ImageNet tables.
    """
    check_fraction("fpr_at_ood_recall", "recall", recall)
    return _fpr_at_ood_recall(*sorted_pair(id_scores, ood_scores), recall)


def aupr_in(id_scores: Scores, ood_scores: Scores) -> float:
    """Compute the area under the precision-recall curve with ID as positive, by trapezoids as OpenOOD does."""
    return _aupr(*sorted_pair(id_scores, ood_scores))


def aupr_out(id_scores: Scores, ood_scores: Scores) -> float:
    """Compute the area under the precision-recall curve with OOD as positive, by trapezoids as OpenOOD does."""
    low, high = sorted_pair(id_scores, ood_scores)
    return _aupr(-high[::-1], -low[::-1])


def all_metrics(id_scores: Scores, ood_scores: Scores, recall: float = 0.95) -> dict[str, float]:
    """Compute all five metrics from one sort of each side."""
    check_fraction("all_metrics", "recall", recall)
    low, high = sorted_pair(id_scores, ood_scores)
    values = (
        _auroc(low, high),
        _fpr_at_id_recall(low, high, recall),
        _fpr_at_ood_recall(low, high, recall),
        _aupr(low, high),
        _aupr(-high[::-1], -low[::-1]),
    )
    return dict(zip(NAMES, values, strict=True))


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Compute the share of images whose largest logit is at their label."""
    if len(logits) == 0 or len(logits) != len(labels):
        raise InputError(
            f"accuracy: needs as many labels as logits and at least one, got {len(labels)} and {len(logits)}"
        )
    return float((logits.argmax(dim=1) == labels).double().mean())


def title(name: str, recall: float = 0.95) -> str:
    """Name a metric as a heading does.

    >>> title("fpr_at_id_recall")
    'FPR at 95 % ID recall'
    """
    return _WORDS[name][0].format(recall=f"{100 * recall:g} %")


def meaning(name: str, recall: float = 0.95) -> str:
    """Say what a metric counts and which way is up."""
    return _WORDS[name][1].format(recall=f"{100 * recall:g} %")


def sorted_pair(id_scores: Scores, ood_scores: Scores) -> tuple[Array, Array]:
    """Check two sets of scores and sort each, in one common dtype."""
    first, second = as_scores("ID scores", id_scores), as_scores("OOD scores", ood_scores)
    dtype = np.result_type(first, second)
    return np.sort(first.astype(dtype, copy=False)), np.sort(second.astype(dtype, copy=False))


def as_scores(what: str, scores: Scores) -> Array:
    """Turn scores into a checked one-dimensional array of float32 or float64."""
    if isinstance(scores, Tensor):
        scores = scores.detach().cpu()
        scores = scores.double() if scores.dtype == torch.bfloat16 else scores  # which NumPy does not know
    array = np.asarray(scores)
    if array.ndim != 1 or len(array) == 0:
        raise InputError(f"metrics: {what} must be one number per image and at least one, got shape {array.shape}")
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float64)
    if np.isnan(array.sum()) and np.isnan(array).any():  # the sum alone may be inf - inf
        raise InputError(f"metrics: {what} must not be NaN, got {int(np.isnan(array).sum())} NaN of {len(array)}")
    return array


def count_at_recall(count: int, recall: float) -> int:
    """Count how many of `count` images are needed so that their share reaches the recall."""
    needed = math.ceil(recall * count)
    # The product may be off by one in the last bit; what decides is the quotient, as in a ROC curve.
    while needed > 1 and (needed - 1) / count >= recall:
        needed -= 1
    while needed / count < recall:
        needed += 1
    return needed


def id_threshold(id_scores: Scores, recall: float = 0.95) -> float:
    """Give the score at or above which this share of the ID images lies."""
    check_fraction("id_threshold", "recall", recall)
    scores = np.sort(as_scores("ID scores", id_scores))
    return float(scores[id_rank(len(scores), recall)])


def degenerate(id_scores: Scores, ood_scores: Scores) -> bool:
    """Say whether nearly all ID images have one and the same score, and most OOD images that score too.

    >>> degenerate([0.0] * 19 + [1.0], [0.0, 0.0, 2.0])
    True
    """
    ids, oods = as_scores("ID scores", id_scores), as_scores("OOD scores", ood_scores)
    values, counts = np.unique(ids, return_counts=True)
    usual = values[counts.argmax()]
    # A score that ID images alone share is none: a sure network gives most of them a confidence of 1.
    return bool((ids == usual).mean() >= ALIKE and (oods == usual).mean() > 0.5)


def id_rank(count: int, recall: float) -> int:
    """Give the rank from below of the ID score that is the threshold at an ID recall."""
    return min(round((1 - recall) * count), count - 1)


def _auroc(low: Array, high: Array) -> float:
    """Count ID images above (and half of those beside) each OOD image; exact, since the counts are whole numbers."""
    below = np.searchsorted(low, high, side="left").sum(dtype=np.int64)
    upto = np.searchsorted(low, high, side="right").sum(dtype=np.int64)
    pairs = len(low) * len(high)
    return float((2 * pairs - int(below) - int(upto)) / (2 * pairs))


def _fpr_at_id_recall(ids: Array, oods: Array, recall: float) -> float:
    threshold = ids[id_rank(len(ids), recall)]
    return float((len(oods) - np.searchsorted(oods, threshold, side="left")) / len(oods))


def _fpr_at_ood_recall(ids: Array, oods: Array, recall: float) -> float:
    threshold = oods[count_at_recall(len(oods), recall) - 1]
    return float(np.searchsorted(ids, threshold, side="right") / len(ids))


def _aupr(positives: Array, negatives: Array) -> float:
    """Integrate precision over recall from two ascending score lists.

    Recall grows only at scores of positives, so only these thresholds have an area; at each, the curve comes from
    the point after the last negative above it.
    """
    count = len(positives)
    starts = np.flatnonzero(
        np.concatenate(([True], positives[1:] != positives[:-1]))
    )  # first index of each distinct value
    # Negatives at or above, and strictly above, each distinct positive, by counting instead of searching 1 M values.
    at_or_above = len(negatives) - _counts_below(positives, negatives, starts, side="right")
    above = len(negatives) - _counts_below(positives, negatives, starts, side="left")
    true_here = count - starts
    true_before = np.append(true_here[1:], 0)
    precision = true_here / (true_here + at_or_above)
    before = true_before / np.maximum(true_before + above, 1)
    if above[-1] == 0:
        before[-1] = 1.0  # no negative above the highest positive: the curve starts at precision 1
    return float(((true_here - true_before) * (precision + before)).sum() / (2 * count))


def _counts_below(values: Array, others: Array, starts: Array, side: str) -> Array:
    """Count the others below (side="right") or not above (side="left") each distinct value."""
    places = np.searchsorted(values, others, side=side)  # type: ignore[call-overload]
    counts = np.bincount(places, minlength=len(values) + 1)
    return np.cumsum(counts)[starts]

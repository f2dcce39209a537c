"""Metrics of OOD detection, from ID-ness scores; higher scores are more in-distribution, and results are in [0, 1].

"FPR@95" has two definitions in the literature, up to 20 points apart, so no function here has that name:
`fpr_at_id_recall` accepts 95 % of the ID images and counts the accepted OOD images;
`fpr_at_ood_recall` rejects 95 % of the OOD images and counts the rejected ID images.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from idness.core.errors import InputError
from idness.core.options import check_fraction

Scores = Any
"""A one-dimensional tensor, array or sequence of numbers."""
Array = NDArray[Any]

Convention = Literal["fpr_at_id_recall", "fpr_at_ood_recall"]
"""The convention of a false-positive rate: whether its recall refers to ID or to OOD images."""

FPRS: tuple[Convention, ...] = ("fpr_at_id_recall", "fpr_at_ood_recall")
WITH_INTERVAL = ("auroc", *FPRS)
NAMES = (*WITH_INTERVAL, "aupr_in", "aupr_out")
SELECTIVE = ("aurc", "accepted_accuracy")
"""Metrics of a classifier that rejects images; they need labels."""
LOWER = (*FPRS, "aurc")
"""The metrics for which lower is better."""
ALIKE = 0.9
"""Fraction of ID images with the same score from which a detector counts as degenerate."""
_WORDS = {
    "auroc": ("AUROC", "probability that an ID image scores above an OOD image; higher is better"),
    "fpr_at_id_recall": ("FPR at {recall} ID recall", "OOD images accepted at {recall} ID recall; lower is better"),
    "fpr_at_ood_recall": ("FPR at {recall} OOD recall", "ID images rejected at {recall} OOD recall; lower is better"),
    "aupr_in": ("AUPR, ID positive", "area under the precision-recall curve, ID positive; higher is better"),
    "aupr_out": ("AUPR, OOD positive", "area under the precision-recall curve, OOD positive; higher is better"),
    "aurc": (
        "AURC",
        "mean error rate among accepted images over all thresholds, counting OOD images as errors; lower is better",
    ),
    "accepted_accuracy": (
        "accuracy of accepted images",
        "correct predictions among images accepted at {recall} ID recall, counting OOD images as errors; higher is better",
    ),
}


def auroc(id_scores: Scores, ood_scores: Scores) -> float:
    """Return the probability that an ID image scores above an OOD image; ties count one half.

    Args:
        id_scores: scores of ID images (N,): a tensor, an array or a sequence.
        ood_scores: scores of OOD images (M,).

    Raises:
        InputError: if there are no scores on one side, or one is NaN.

    >>> auroc([3.0, 2.0], [1.0, 2.0])
    0.875
    """
    ids, oods = sorted_pair(id_scores, ood_scores)
    # Counts of pairs are integers, so the result is exact.
    below, upto = (int(np.searchsorted(ids, oods, side).sum()) for side in ("left", "right"))
    pairs = len(ids) * len(oods)
    return (2 * pairs - below - upto) / (2 * pairs)


def fpr_at_id_recall(id_scores: Scores, ood_scores: Scores, recall: float = 0.95) -> float:
    """Return the fraction of OOD images accepted at the given ID recall.

    ID is the positive class. The threshold is the ID score at rank round((1 - recall) N) from below; OOD images at or above it are
    accepted, so ties count against a detector. If no OOD image has exactly that score, as in the paper's CIFAR tables, this is
    the value that the code of ASH, ReAct and DICE computes. Arguments and errors are those of `auroc`.

    >>> fpr_at_id_recall([1.0, 2.0, 3.0, 4.0], [0.0, 2.5], recall=0.75)
    0.5
    """
    ids, oods = sorted_pair(id_scores, ood_scores)
    return float((oods >= id_threshold(ids, recall)).mean())


def fpr_at_ood_recall(id_scores: Scores, ood_scores: Scores, recall: float = 0.95) -> float:
    """Return the fraction of ID images rejected at the given OOD recall.

    OOD is the positive class. The threshold is the first point of the ROC curve that reaches the recall; images at or below it are
    rejected. This is the definition of OpenOOD and of the paper's near/far ImageNet tables. Arguments and errors are those of `auroc`.

    >>> fpr_at_ood_recall([1.0, 2.0, 3.0, 4.0], [0.0, 2.5], recall=0.75)
    0.5
    """
    check_fraction("fpr_at_ood_recall", "recall", recall)
    ids, oods = sorted_pair(id_scores, ood_scores)
    return float((ids <= oods[count_at_recall(len(oods), recall) - 1]).mean())


def aupr_in(id_scores: Scores, ood_scores: Scores) -> float:
    """Return the area under the precision-recall curve with ID as the positive class, by trapezoids as in OpenOOD."""
    return _aupr(*sorted_pair(id_scores, ood_scores))


def aupr_out(id_scores: Scores, ood_scores: Scores) -> float:
    """Return the area under the precision-recall curve with OOD as the positive class, by trapezoids as in OpenOOD."""
    low, high = sorted_pair(id_scores, ood_scores)
    return _aupr(-high[::-1], -low[::-1])


def aurc(id_scores: Scores, correct: Any, ood_scores: Scores = ()) -> float:
    """Return the area under the risk-coverage curve of a classifier that rejects images with low scores.

    For each number of accepted images, those with the highest scores, the risk is the fraction of errors among them: wrongly predicted
    ID images and all OOD images. The area is the mean risk over all numbers; tied images are accepted in random order, on average.

    Args:
        id_scores: scores of ID images (N,).
        correct: whether each of them is predicted correctly (N,).
        ood_scores: scores of OOD images (M,); none for selective classification of ID images alone.

    Raises:
        InputError: if there are no ID scores, one is NaN, or `correct` has another length.

    >>> round(aurc([3.0, 2.0], [True, False], [1.0]), 4)  # risks 0, 1/2 and 2/3
    0.3889
    """
    ids, right, oods = _with_errors("aurc", id_scores, correct, ood_scores)
    scores, errors = np.concatenate((ids, oods)), np.concatenate((~right, np.ones(len(oods), bool)))
    _, group, sizes = np.unique(-scores, return_inverse=True, return_counts=True)
    rates = np.bincount(group, weights=errors) / sizes  # the expected error of each image of a tie
    risks = np.cumsum(np.repeat(rates, sizes)) / np.arange(1, len(scores) + 1)
    return float(risks.mean())


def accepted_accuracy(id_scores: Scores, correct: Any, ood_scores: Scores = (), recall: float = 0.95) -> float:
    """Return the accuracy among accepted images at the given ID recall; accepted OOD images count as errors.

    Arguments and errors are those of `aurc`, the threshold is that of `fpr_at_id_recall`.

    >>> accepted_accuracy([4.0, 3.0, 2.0, 1.0], [True, False, True, True], [2.5, 0.0], recall=0.75)
    0.5
    """
    ids, right, oods = _with_errors("accepted_accuracy", id_scores, correct, ood_scores)
    threshold = id_threshold(ids, recall)
    return float((right & (ids >= threshold)).sum() / ((ids >= threshold).sum() + (oods >= threshold).sum()))


def all_metrics(id_scores: Scores, ood_scores: Scores, recall: float = 0.95) -> dict[str, float]:
    """Return all five metrics by name."""
    pair = sorted_pair(id_scores, ood_scores)  # sorting sorted values again is fast
    return {
        "auroc": auroc(*pair),
        "fpr_at_id_recall": fpr_at_id_recall(*pair, recall),
        "fpr_at_ood_recall": fpr_at_ood_recall(*pair, recall),
        "aupr_in": aupr_in(*pair),
        "aupr_out": aupr_out(*pair),
    }


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Return the fraction of images whose largest logit (N, C) is that of their label (N,)."""
    if len(logits) == 0 or len(logits) != len(labels):
        raise InputError(f"accuracy: needs as many labels as logits, at least one, got {len(labels)} and {len(logits)}")
    return float((logits.argmax(dim=1) == labels).double().mean())


def title(name: str, recall: float = 0.95) -> str:
    """Return the name of a metric for headings.

    >>> title("fpr_at_id_recall")
    'FPR at 95 % ID recall'
    """
    return _WORDS[name][0].format(recall=f"{100 * recall:g} %")


def meaning(name: str, recall: float = 0.95) -> str:
    """Return the definition of a metric, and whether higher or lower is better."""
    return _WORDS[name][1].format(recall=f"{100 * recall:g} %")


def _with_errors(owner: str, id_scores: Scores, correct: Any, ood_scores: Scores) -> tuple[Array, Array, Array]:
    ids, right = as_scores("ID scores", id_scores), np.asarray(correct, bool)
    if right.shape != ids.shape:
        raise InputError(f"{owner}: correct must have one value per ID score ({len(ids)}), got shape {right.shape}")
    return ids, right, as_scores("OOD scores", ood_scores) if len(ood_scores) else ids[:0]


def sorted_pair(id_scores: Scores, ood_scores: Scores) -> tuple[Array, Array]:
    """Return ID and OOD scores, checked and sorted."""
    return np.sort(as_scores("ID scores", id_scores)), np.sort(as_scores("OOD scores", ood_scores))


def as_scores(what: str, scores: Scores) -> Array:
    """Return scores as a one-dimensional array of float32 or float64 without NaN."""
    if isinstance(scores, Tensor):
        scores = scores.detach().cpu()
        scores = scores.double() if scores.dtype == torch.bfloat16 else scores  # unknown to NumPy
    array = np.asarray(scores)
    if array.ndim != 1 or len(array) == 0:
        raise InputError(f"metrics: {what} must be one number per image and at least one, got shape {array.shape}")
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float64)
    if np.isnan(array).any():
        raise InputError(f"metrics: {what} must not be NaN, got {int(np.isnan(array).sum())} NaN of {len(array)}")
    return array


def count_at_recall(count: int, recall: float) -> int:
    """Return the smallest number of `count` images whose fraction reaches the recall."""
    # Compare quotients as a ROC curve does: 0.55 * 20 is a little more than 11, and 11 / 20 is 0.55.
    return int(np.searchsorted(np.arange(1, count + 1) / count, recall)) + 1


def id_threshold(id_scores: Scores, recall: float = 0.95) -> float:
    """Return the score at or above which the given fraction of the ID images lies."""
    check_fraction("id_threshold", "recall", recall)
    scores = np.sort(as_scores("ID scores", id_scores))
    return float(scores[id_rank(len(scores), recall)])


def degenerate(id_scores: Scores, ood_scores: Scores) -> bool:
    """Whether nearly all ID images have the same score, and most OOD images have it too.

    >>> degenerate([0.0] * 19 + [1.0], [0.0, 0.0, 2.0])
    True
    """
    ids, oods = as_scores("ID scores", id_scores), as_scores("OOD scores", ood_scores)
    values, counts = np.unique(ids, return_counts=True)
    usual = values[counts.argmax()]
    # Not degenerate if only ID images share it: a confident network gives most of them a probability of 1.
    return bool((ids == usual).mean() >= ALIKE and (oods == usual).mean() > 0.5)


def id_rank(count: int, recall: float) -> int:
    """Return the rank, from below, of the ID score that is the threshold at an ID recall."""
    return min(round((1 - recall) * count), count - 1)


def _aupr(positives: Array, negatives: Array) -> float:
    """Return the integral of precision over recall, from two ascending arrays of scores.

    Recall increases only at scores of positives, so only these thresholds contribute; at each, the curve comes from the point after
    the last negative above it.
    """
    thresholds, counts = np.unique(positives, return_counts=True)
    true_here = np.cumsum(counts[::-1])[::-1]
    true_before = true_here - counts
    at_or_above, above = (len(negatives) - np.searchsorted(negatives, thresholds, side) for side in ("left", "right"))
    precision = true_here / (true_here + at_or_above)
    before = true_before / np.maximum(true_before + above, 1)
    if above[-1] == 0:
        before[-1] = 1.0  # no negative above the highest positive: the curve starts at precision 1
    return float((counts * (precision + before)).sum() / (2 * len(positives)))

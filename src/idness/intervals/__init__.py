"""Error bars: how far a metric may be off for the images it was measured on, and whether two methods or runs differ.

A metric may be the mean over several OOD sets. They share their ID images, so their errors go together; a single set is
treated as a mean over one.
"""

from __future__ import annotations

from idness.intervals.bootstrap import difference_of_draws, fpr_draws, images_needed, mean_fpr_interval
from idness.intervals.delong import Ranks, mean_auroc_difference, mean_auroc_interval, ranks
from idness.intervals.difference import Difference, Interval, compare_runs
from idness.metrics import Convention, Scores, fpr_at_id_recall, fpr_at_ood_recall

__all__ = [
    "Difference",
    "Interval",
    "Ranks",
    "auroc_interval",
    "compare_auroc",
    "compare_fpr_at_id_recall",
    "compare_fpr_at_ood_recall",
    "compare_runs",
    "difference_of_draws",
    "fpr_at_id_recall_interval",
    "fpr_at_ood_recall_interval",
    "fpr_draws",
    "images_needed",
    "mean_auroc_difference",
    "mean_auroc_interval",
    "mean_fpr_interval",
    "ranks",
]


def auroc_interval(id_scores: Scores, ood_scores: Scores, level: float = 0.95) -> Interval:
    """Compute DeLong's interval for the AUROC, on the logit scale so that it stays within [0, 1]."""
    return mean_auroc_interval(ranks(id_scores, [ood_scores]), level)


def fpr_at_id_recall_interval(
    id_scores: Scores, ood_scores: Scores, recall: float = 0.95, level: float = 0.95, seed: int = 0
) -> Interval | None:
    """Return an interval for `fpr_at_id_recall`, or None with fewer than `images_needed(recall, level)` ID images."""
    return mean_fpr_interval("fpr_at_id_recall", id_scores, [ood_scores], recall, level, seed)


def fpr_at_ood_recall_interval(
    id_scores: Scores, ood_scores: Scores, recall: float = 0.95, level: float = 0.95, seed: int = 0
) -> Interval | None:
    """Return an interval for `fpr_at_ood_recall`, or None with fewer than `images_needed(recall, level)` OOD images."""
    return mean_fpr_interval("fpr_at_ood_recall", id_scores, [ood_scores], recall, level, seed)


def compare_auroc(id_a: Scores, ood_a: Scores, id_b: Scores, ood_b: Scores, level: float = 0.95) -> Difference:
    """Test whether two methods differ in AUROC on the same images, by DeLong's paired test."""
    return mean_auroc_difference(ranks(id_a, [ood_a]), ranks(id_b, [ood_b]), level)


def compare_fpr_at_id_recall(
    id_a: Scores, ood_a: Scores, id_b: Scores, ood_b: Scores, recall: float = 0.95, level: float = 0.95, seed: int = 0
) -> Difference | None:
    """Test whether two methods differ in `fpr_at_id_recall` on the same images, by a paired bootstrap.

    Returns:
        The difference, or None with fewer than `images_needed(recall, level)` ID images.
    """
    return _compare_fpr("fpr_at_id_recall", (id_a, ood_a), (id_b, ood_b), recall, level, seed)


def compare_fpr_at_ood_recall(
    id_a: Scores, ood_a: Scores, id_b: Scores, ood_b: Scores, recall: float = 0.95, level: float = 0.95, seed: int = 0
) -> Difference | None:
    """Test whether two methods differ in `fpr_at_ood_recall` on the same images, by a paired bootstrap.

    Returns:
        The difference, or None with fewer than `images_needed(recall, level)` OOD images.
    """
    return _compare_fpr("fpr_at_ood_recall", (id_a, ood_a), (id_b, ood_b), recall, level, seed)


def _compare_fpr(
    name: Convention, a: tuple[Scores, Scores], b: tuple[Scores, Scores], recall: float, level: float, seed: int
) -> Difference | None:
    draws = fpr_draws({"a": (a[0], [a[1]]), "b": (b[0], [b[1]])}, name, recall, seed=seed)
    if len(a[0] if name == "fpr_at_id_recall" else a[1]) < images_needed(recall, level):
        return None
    metric = fpr_at_id_recall if name == "fpr_at_id_recall" else fpr_at_ood_recall
    return difference_of_draws(metric(*a, recall) - metric(*b, recall), draws["a"][:, 0], draws["b"][:, 0], level)

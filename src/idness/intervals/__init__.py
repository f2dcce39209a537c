"""Error bars: how far a metric may be off for the images it was measured on, and whether two methods or runs differ.

A metric may be the mean over several OOD sets. They share their ID images, so their errors go together; a single set is
treated as a mean over one.
"""

from __future__ import annotations

from idness.intervals.bootstrap import difference_of_draws, fpr_draws, mean_fpr_interval
from idness.intervals.delong import Ranks, mean_auroc_difference, mean_auroc_interval, ranks
from idness.intervals.difference import Difference, Interval, compare_runs
from idness.metrics import Scores, fpr_at_id_recall, fpr_at_ood_recall

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
) -> Interval:
    """Compute a bootstrap interval for `fpr_at_id_recall`, over both the ID threshold and the OOD count."""
    return mean_fpr_interval("fpr_at_id_recall", id_scores, [ood_scores], recall, level, seed)


def fpr_at_ood_recall_interval(
    id_scores: Scores, ood_scores: Scores, recall: float = 0.95, level: float = 0.95, seed: int = 0
) -> Interval:
    """Compute a bootstrap interval for `fpr_at_ood_recall`, over both the OOD threshold and the ID count."""
    return mean_fpr_interval("fpr_at_ood_recall", id_scores, [ood_scores], recall, level, seed)


def compare_auroc(id_a: Scores, ood_a: Scores, id_b: Scores, ood_b: Scores, level: float = 0.95) -> Difference:
    """Test whether two methods differ in AUROC on the same images, by DeLong's paired test."""
    return mean_auroc_difference(ranks(id_a, [ood_a]), ranks(id_b, [ood_b]), level)


def compare_fpr_at_id_recall(
    id_a: Scores, ood_a: Scores, id_b: Scores, ood_b: Scores, recall: float = 0.95, level: float = 0.95, seed: int = 0
) -> Difference:
    """Test whether two methods differ in `fpr_at_id_recall` on the same images, by a paired bootstrap."""
    draws = fpr_draws({"a": (id_a, [ood_a]), "b": (id_b, [ood_b])}, "fpr_at_id_recall", recall, seed=seed)
    value = fpr_at_id_recall(id_a, ood_a, recall) - fpr_at_id_recall(id_b, ood_b, recall)
    return difference_of_draws(value, draws["a"][:, 0], draws["b"][:, 0], level)


def compare_fpr_at_ood_recall(
    id_a: Scores, ood_a: Scores, id_b: Scores, ood_b: Scores, recall: float = 0.95, level: float = 0.95, seed: int = 0
) -> Difference:
    """Test whether two methods differ in `fpr_at_ood_recall` on the same images, by a paired bootstrap."""
    draws = fpr_draws({"a": (id_a, [ood_a]), "b": (id_b, [ood_b])}, "fpr_at_ood_recall", recall, seed=seed)
    value = fpr_at_ood_recall(id_a, ood_a, recall) - fpr_at_ood_recall(id_b, ood_b, recall)
    return difference_of_draws(value, draws["a"][:, 0], draws["b"][:, 0], level)

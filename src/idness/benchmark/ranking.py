"""Ranks the rows of a report by their mean AUROC, and tells which of them the best one is ahead of."""

from __future__ import annotations

from collections.abc import Mapping

from idness.benchmark.parts import Rival
from idness.benchmark.results import Report
from idness.intervals import Ranks, mean_auroc_difference, ranks

LEVEL = 0.95


def ood_weights(report: Report) -> dict[str, float]:
    """Give each OOD test set its weight: the groups count alike, and so do the sets within a group."""
    groups = {name: sets for name, sets in report.benchmark.groups.items() if sets}
    weights: dict[str, float] = {}
    for sets in groups.values():
        for name in sets:
            weights[name] = weights.get(name, 0.0) + 1 / (len(groups) * len(sets))
    return weights


def mean_auroc(report: Report, row: str) -> float:
    """Compute a row's mean AUROC: the mean of its group means."""
    return sum(weight * report.methods[row].sets[name].auroc for name, weight in ood_weights(report).items())


def row_ranks(report: Report, row: str, weights: Mapping[str, float]) -> Ranks:
    """Rank one row's images over some OOD sets."""
    oods = [report.scores.of(row, name) for name in weights]
    return ranks(report.scores.of(row, "id_test"), oods, list(weights.values()))


def joint_level(rows: int, level: float = LEVEL) -> float:
    """Give the level of each comparison with the best so that all of them hold together (Bonferroni)."""
    return 1 - (1 - level) / max(rows - 1, 1)


def rivals_of_best(found: Mapping[str, Ranks]) -> tuple[str, list[Rival]]:
    """Find the row with the highest mean AUROC, and its lead over each of the others, the nearest first."""
    best = max(found, key=lambda row: found[row].auroc)
    level = joint_level(len(found))
    leads = {row: mean_auroc_difference(found[best], found[row], level) for row in found if row != best}
    rivals = [Rival(row=row, lead=lead, tie=lead.low <= 0) for row, lead in leads.items()]
    return best, sorted(rivals, key=lambda rival: rival.lead.value)

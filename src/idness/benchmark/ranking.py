"""Ranks the rows of a report, tells which of them the best one is ahead of, and marks it and those level with it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from idness.benchmark.parts import Metrics, Rival
from idness.benchmark.results import Report
from idness.core.normal import normal_quantile
from idness.intervals import Ranks, fpr_draws, images_needed, mean_auroc_difference, ranks
from idness.metrics import FPRS, Array, title

LEVEL = 0.95
DRAWS = 300
"""Bootstrap draws: only their standard deviation is used."""


def too_few(report: Report, metric: str) -> dict[str, int]:
    """Return the sets, with their numbers of images, that are too small for an interval of an FPR."""
    names = ["id_test"] if metric == "fpr_at_id_recall" else ood_weights(report)
    needed = images_needed(report.recall, LEVEL)
    return {name: report.sets[name].images for name in names if report.sets[name].images < needed}


def without_interval(report: Report) -> list[str]:
    """Return a sentence for each FPR that has no interval on some sets, with the number of images needed."""
    found = []
    for metric in FPRS:
        few = ", ".join(f"{name} ({images:,})" for name, images in too_few(report, metric).items())
        if few:
            needed = images_needed(report.recall, LEVEL)
            found.append(f"no interval for {title(metric, report.recall)}: needs at least {needed} images, got {few}")
    return found


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


def standing(report: Report, row: str) -> tuple[bool, float]:
    """Give what rows are sorted by, the best last: by mean AUROC, and degenerate rows below all others."""
    return not report.methods[row].degenerate, mean_auroc(report, row)


def contenders(report: Report) -> list[str]:
    """List the rows that may be the best: all but degenerate ones, unless there are no others."""
    able = [row for row, found in report.methods.items() if not found.degenerate]
    return able or list(report.methods)


def row_ranks(report: Report, row: str, weights: Mapping[str, float]) -> Ranks:
    """Rank one row's images over some OOD sets."""
    oods = [report.scores.of(row, name) for name in weights]
    return ranks(report.scores.of(row, "id_test"), oods, list(weights.values()))


def joint_level(rows: int) -> float:
    """Give the level of each comparison with the best so that all of them hold together (Bonferroni)."""
    return 1 - (1 - LEVEL) / max(rows - 1, 1)


def rivals_of_best(found: Mapping[str, Ranks], able: Collection[str]) -> tuple[str, list[Rival]]:
    """Find the row with the highest mean AUROC among those that may be the best, and its lead over all others, the nearest first."""
    best = max(able, key=lambda row: found[row].auroc)
    level = joint_level(len(found))
    leads = {row: mean_auroc_difference(found[best], found[row], level) for row in found if row != best}
    rivals = [Rival(row=row, lead=lead, tie=lead.low <= 0 and row in able) for row, lead in leads.items()]
    return best, sorted(rivals, key=lambda rival: rival.lead.value)


def mark(report: Report) -> None:
    """Write the marks into a report that has scores; those of one metric and set or group hold together at 95 %."""
    read, names, methods = report.scores.of, list(ood_weights(report)), report.methods
    scores = {row: (read(row, "id_test"), [read(row, name) for name in names]) for row in methods}
    draws = {metric: fpr_draws(scores, metric, report.recall, draws=DRAWS) for metric in FPRS}
    columns = [
        (sets, {row: methods[row].groups[group] for row in methods}) for group, sets in report.benchmark.groups.items()
    ]
    columns += [([name], {row: methods[row].sets[name] for row in methods}) for name in names]
    for sets, found in columns:
        if sets:
            places = [names.index(name) for name in sets]
            _write("auroc", found, *_by_auroc(report, sets))
            for metric in FPRS:
                if not all(metric in metrics.intervals for metrics in found.values()):
                    continue  # too few images for a test
                drawn = {row: values[:, places].mean(axis=1) for row, values in draws[metric].items()}
                values = {row: getattr(found[row], metric) for row in contenders(report)}
                _write(metric, found, *_by_fpr(values, drawn))


def _by_auroc(report: Report, sets: Sequence[str]) -> tuple[str, list[str]]:
    """Find the best row and its ties by DeLong's paired test."""
    found = {row: row_ranks(report, row, dict.fromkeys(sets, 1.0)) for row in report.methods}
    best, rivals = rivals_of_best(found, contenders(report))
    return best, [rival.row for rival in rivals if rival.tie]


def _by_fpr(values: Mapping[str, float], drawn: Mapping[str, Array]) -> tuple[str, list[str]]:
    """Find the best row and its ties by a paired bootstrap."""
    best = min(values, key=lambda row: values[row])
    reach = -normal_quantile((1 - joint_level(len(values))) / 2)
    errors = {row: float((drawn[row] - drawn[best]).std()) for row in values}
    return best, [row for row in values if row != best and values[row] - values[best] <= reach * errors[row]]


def _write(metric: str, found: Mapping[str, Metrics], best: str, ties: Sequence[str]) -> None:
    for row, metrics in found.items():
        metrics.marks.pop(metric, None)
        if row == best or row in ties:
            metrics.marks[metric] = "best" if row == best else "tie"

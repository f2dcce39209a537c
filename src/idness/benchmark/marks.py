"""Marks, for every set, group and metric, the best row and those that cannot be told apart from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scipy.special import ndtri

from idness.benchmark.parts import Metrics
from idness.benchmark.ranking import joint_level, ood_weights, rivals_of_best, row_ranks
from idness.benchmark.results import Report
from idness.intervals import fpr_draws
from idness.metrics import FPRS, Array

DRAWS = 300
"""Bootstrap draws: only their standard deviation is used."""


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
                drawn = {row: values[:, places].mean(axis=1) for row, values in draws[metric].items()}
                _write(metric, found, *_by_fpr({row: getattr(found[row], metric) for row in methods}, drawn))


def _by_auroc(report: Report, sets: Sequence[str]) -> tuple[str, list[str]]:
    """Find the best row and its ties by DeLong's paired test."""
    best, rivals = rivals_of_best({row: row_ranks(report, row, dict.fromkeys(sets, 1.0)) for row in report.methods})
    return best, [rival.row for rival in rivals if rival.tie]


def _by_fpr(values: Mapping[str, float], drawn: Mapping[str, Array]) -> tuple[str, list[str]]:
    """Find the best row and its ties by a paired bootstrap."""
    best = min(values, key=lambda row: values[row])
    reach = -float(ndtri((1 - joint_level(len(values))) / 2))
    errors = {row: float((drawn[row] - drawn[best]).std()) for row in values}
    return best, [row for row in values if row != best and values[row] - values[best] <= reach * errors[row]]


def _write(metric: str, found: Mapping[str, Metrics], best: str, ties: Sequence[str]) -> None:
    for row, metrics in found.items():
        metrics.marks.pop(metric, None)
        if row == best or row in ties:
            metrics.marks[metric] = "best" if row == best else "tie"

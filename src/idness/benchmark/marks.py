"""Tells, column by column, which row is best and which others cannot be told apart from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from idness.benchmark.answer import joint_level, ood_weights, row_ranks
from idness.benchmark.results import Report
from idness.intervals import fpr_draws, mean_auroc_difference
from idness.metrics import Convention

DRAWS = 300
"""Bootstrap draws: only their standard deviation is used."""
BEST, TIE, NONE = "best", "tie", ""


class Marks:
    """Marks the best row of a column and those level with it; each column as a whole holds at 95 %."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.rows = list(report.methods)
        self.sets = list(ood_weights(report))

    def auroc(self, weights: Mapping[str, float]) -> dict[str, str]:
        """Mark a column of AUROCs, or of their weighted means, by DeLong's paired test."""
        found = {row: row_ranks(self.report, row, dict(weights)) for row in self.rows}
        best = max(self.rows, key=lambda row: found[row].auroc)
        level = joint_level(len(self.rows))
        return {
            row: BEST if row == best else _tied(mean_auroc_difference(found[best], found[row], level).low <= 0)
            for row in self.rows
        }

    def fpr(self, metric: Convention, sets: Sequence[str]) -> dict[str, str]:
        """Mark a column of FPRs, or of their means over sets, by a paired bootstrap."""
        draws = self._id_draws if metric == "fpr_at_id_recall" else self._ood_draws
        places = [self.sets.index(name) for name in sets]
        values = {
            row: float(np.mean([getattr(self.report.methods[row].sets[name], metric) for name in sets]))
            for row in self.rows
        }
        best = min(self.rows, key=lambda row: values[row])
        reach = -float(ndtri((1 - joint_level(len(self.rows))) / 2))
        marks = {}
        for row in self.rows:
            gaps = (draws[row][:, places] - draws[best][:, places]).mean(axis=1)
            marks[row] = BEST if row == best else _tied(values[row] - values[best] <= reach * float(gaps.std()))
        return marks

    @cached_property
    def _id_draws(self) -> dict[str, NDArray[Any]]:
        return self._draws("fpr_at_id_recall")

    @cached_property
    def _ood_draws(self) -> dict[str, NDArray[Any]]:
        return self._draws("fpr_at_ood_recall")

    def _draws(self, metric: Convention) -> dict[str, NDArray[Any]]:
        read = self.report.scores.of
        scores = {row: (read(row, "id_test"), [read(row, name) for name in self.sets]) for row in self.rows}
        return fpr_draws(scores, metric, self.report.recall, draws=DRAWS)


def _tied(level: bool) -> str:
    return TIE if level else NONE

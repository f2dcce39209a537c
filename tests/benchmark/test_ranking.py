from __future__ import annotations

import copy

import numpy as np

from idness.benchmark.ranking import _by_fpr, contenders
from idness.benchmark.results import Report


def test_a_row_of_one_score_is_no_contender_unless_there_are_no_others(report: Report) -> None:
    changed = copy.deepcopy(report)
    first, *others = changed.methods
    changed.methods[first].degenerate = True
    assert contenders(changed) == others
    for found in changed.methods.values():
        found.degenerate = True
    assert contenders(changed) == [first, *others]


def test_rows_are_level_with_the_best_within_the_joint_reach_of_their_differences() -> None:
    """Of three rows, two comparisons hold together at 95 % if each holds at 97.5 %: within 2.24 standard errors."""
    noise = np.random.default_rng(0).normal(0, 0.02, 4_000)
    noise /= noise.std() / 0.02
    values = {"best": 0.10, "level": 0.10 + 2.2 * 0.02, "behind": 0.10 + 2.3 * 0.02}
    drawn = {"best": np.zeros(4_000), "level": noise, "behind": -noise}
    assert _by_fpr(values, drawn) == ("best", ["level"])

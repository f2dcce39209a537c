from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest

from idness.benchmark.answer import _best_by_fpr, answer, conclude, contenders, joint_level
from idness.benchmark.results import Report, ood_weights
from idness.core.errors import StoreError
from idness.intervals import compare_auroc
from idness.metrics import FPRS
from tests.measured import bench


def test_groups_count_alike_and_so_do_the_sets_within_one(report: Report) -> None:
    weights = ood_weights(report)
    assert weights == {"pale": 0.25, "mixed": 0.25, "noise": 0.25, "stripes": 0.25}
    other = changed(report, groups={"near": ["pale"], "far": ["mixed", "noise", "stripes"]})
    assert ood_weights(other) == pytest.approx({"pale": 1 / 2, "mixed": 1 / 6, "noise": 1 / 6, "stripes": 1 / 6})


def test_a_clear_winner_is_named_with_its_lead(report: Report) -> None:
    found = answer(changed(report))
    means = {row: np.mean([item.groups[g].auroc for g in ("near", "far")]) for row, item in report.methods.items()}
    assert found.auroc == pytest.approx(means)
    assert found.best == max(means, key=lambda row: means[row])
    assert found.kind == "clear"
    assert found.use == found.best
    assert found.sentence.startswith(f"Recommended: {found.best}(")
    assert not found.ties
    assert all(rival.lead.low > 0 for rival in found.rivals)


def changed(report: Report, *rows: str, groups: dict[str, list[str]] | None = None, validated: bool = False) -> Report:
    """Return a copy with some methods and groups only, and without AUROCs on validation data unless `validated`."""
    other = copy.deepcopy(report)
    other.__dict__["scores"] = report.scores
    other.methods = {row: other.methods[row] for row in rows or report.methods}
    other.benchmark.groups = groups or other.benchmark.groups
    for method in other.methods.values():
        method.validation_auroc = method.validation_auroc if validated else None
    return other


def test_ties_are_named(report: Report) -> None:
    near = changed(report, "msp", "ebo", "react", "ash-s", groups={"near": ["pale"]}, validated=True)
    found = answer(near)
    assert found.kind == "tie"
    assert found.ties
    assert "Not significantly" in found.sentence
    for row in [found.best, *found.ties]:
        assert row in found.sentence
    for row in set(near.methods) - {found.best}:
        scores = [report.scores.of(each, name) for each in (found.best, row) for name in ("id_test", "pale")]
        assert (row in found.ties) == (compare_auroc(*scores, level=joint_level(4)).low <= 0)


def test_the_row_is_chosen_on_validation_data_whatever_the_test_sets_say(report: Report) -> None:
    other = changed(report, validated=True)
    worst = min(report.answer.auroc, key=lambda row: report.answer.auroc[row])
    other.methods[worst].validation_auroc = 1.0
    found = answer(other)
    assert found.use == worst
    assert found.best == report.answer.best
    assert found.kind == "behind"
    lead = next(rival.lead for rival in found.rivals if rival.row == worst)
    assert f"on which {found.best} is better by {100 * lead.value:.2f} points" in found.sentence


def test_without_validation_data_the_advice_on_the_network_is_followed(report: Report) -> None:
    other = changed(report)
    other.advised, other.advised_why = "msp", "Recommended: msp."
    found = answer(other)
    assert found.use == "msp"
    assert any(line.endswith("without the test sets: msp.") for line in found.evidence)
    other.advised = "nosuch"
    assert answer(other).use == report.answer.best


def test_set_by_set_only_what_is_certain_is_called_better(report: Report) -> None:
    found = answer(changed(report, "msp", "ebo"))
    assert found.best == "msp"
    gaps = {
        name: compare_auroc(*(report.scores.of(row, part) for row in ("msp", "ebo") for part in ("id_test", name)))
        for name in ("pale", "mixed", "noise", "stripes")
    }
    assert gaps["mixed"].low > 0
    assert gaps["pale"].low < 0 < gaps["pale"].value  # ahead, but that may be chance
    line = next(line for line in found.evidence if line.startswith("By set, compared with ebo, the runner-up, msp is"))
    better, _, undecided = line.partition("undecided on")
    for name, gap in gaps.items():
        assert name in (better if gap.low > 0 else undecided)


def test_one_method_and_an_untrained_network_get_no_recommendation(tmp_path: Path) -> None:
    found = answer(bench(tmp_path / "a", rows=("ebo",), validation=False))
    assert found.kind == "only"
    assert any("no OOD validation set" in line for line in found.evidence)
    found = answer(bench(tmp_path / "b", rows=("msp", "ebo", "scale"), disturbed=None, any_accuracy=True))
    assert max(found.auroc.values()) < 0.6
    assert found.kind == "useless"
    assert found.sentence.startswith("No recommendation")


def test_what_version_0_1_wrote_gets_answer_and_marks_from_its_scores(report: Report, tmp_path: Path) -> None:
    """Its results have neither field."""
    copy.deepcopy(report).save(tmp_path)
    raw = json.loads((tmp_path / "results.json").read_text())
    del raw["answer"]
    for method in raw["methods"].values():
        for found in (*method["sets"].values(), *method["groups"].values()):
            del found["marks"]
    (tmp_path / "results.json").write_text(json.dumps(raw))
    old = Report.load(tmp_path)
    assert old.answer is None
    assert conclude(old) == report
    (tmp_path / "scores.safetensors").unlink()
    with pytest.raises(StoreError, match=r"contains no scores\.safetensors"):
        conclude(Report.load(tmp_path / "results.json"))


def test_each_column_marks_its_best_and_those_level_with_it(report: Report) -> None:
    rows, read = list(report.methods), report.scores.of
    for name in ood_weights(report):
        for metric in FPRS:
            found = {row: report.methods[row].sets[name] for row in rows}
            lowest = min(getattr(each, metric) for each in found.values())
            [best] = [each for each in found.values() if each.marks.get(metric) == "best"]
            assert getattr(best, metric) == lowest
        marks = {row: report.methods[row].sets[name].marks.get("auroc") for row in rows}
        best = max(rows, key=lambda row: report.methods[row].sets[name].auroc)
        for row in rows:
            scores = [read(each, part) for each in (best, row) for part in ("id_test", name)]
            level = compare_auroc(*scores, level=joint_level(len(rows))).low <= 0
            assert marks[row] == ("best" if row == best else "tie" if level else None)


def test_a_row_of_one_score_is_no_contender_unless_there_are_no_others(report: Report) -> None:
    spoilt = changed(report)
    first, *others = spoilt.methods
    spoilt.methods[first].degenerate = True
    assert contenders(spoilt) == others
    for found in spoilt.methods.values():
        found.degenerate = True
    assert contenders(spoilt) == [first, *others]


def test_rows_are_level_with_the_best_within_the_joint_reach_of_their_differences() -> None:
    """Of three rows, two comparisons hold together at 95 % if each holds at 97.5 %: within 2.24 standard errors."""
    noise = np.random.default_rng(0).normal(0, 0.02, 4_000)
    noise /= noise.std() / 0.02
    values = {"best": 0.10, "level": 0.10 + 2.2 * 0.02, "behind": 0.10 + 2.3 * 0.02}
    drawn = {"best": np.zeros(4_000), "level": noise, "behind": -noise}
    assert _best_by_fpr(values, drawn) == ["best", "level"]

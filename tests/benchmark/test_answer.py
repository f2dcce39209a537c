from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markupsafe import escape
from scipy.stats import norm

from idness.benchmark.answer import answer, conclude
from idness.benchmark.evaluate import set_metrics
from idness.benchmark.ranking import joint_level, mark, mean_auroc, ood_weights, row_ranks
from idness.benchmark.results import Report
from idness.core.errors import InputError, StoreError
from idness.intervals import (
    auroc_interval,
    compare_auroc,
    mean_auroc_difference,
    mean_auroc_interval,
)
from idness.metrics import auroc, fpr_at_id_recall, fpr_at_ood_recall
from idness.report import write_html
from tests.measured import bench

SAMPLES = Path(__file__).parents[1] / "samples"


def test_groups_count_alike_and_so_do_the_sets_within_one(report: Report) -> None:
    weights = ood_weights(report)
    assert weights == {"pale": 0.25, "mixed": 0.25, "noise": 0.25, "stripes": 0.25}
    other = copy.deepcopy(report)
    other.benchmark.groups = {"near": ["pale"], "far": ["mixed", "noise", "stripes"]}
    assert ood_weights(other) == pytest.approx({"pale": 1 / 2, "mixed": 1 / 6, "noise": 1 / 6, "stripes": 1 / 6})


def test_one_set_gives_delongs_interval_and_test(report: Report) -> None:
    read = report.scores.of
    one, other = (row_ranks(report, row, {"pale": 1.0}) for row in ("knn", "ebo"))
    assert one.auroc == pytest.approx(auroc(read("knn", "id_test"), read("knn", "pale")), abs=1e-12)
    assert mean_auroc_interval(one) == pytest.approx(auroc_interval(read("knn", "id_test"), read("knn", "pale")))
    expected = compare_auroc(*(read(row, name) for row in ("knn", "ebo") for name in ("id_test", "pale")))
    assert mean_auroc_difference(one, other) == pytest.approx(expected)


def test_a_clear_winner_is_named_with_its_lead(report: Report) -> None:
    found = answer(without_validation(report))
    means = {row: np.mean([item.groups[g].auroc for g in ("near", "far")]) for row, item in report.methods.items()}
    assert found.auroc == pytest.approx(means)
    assert found.auroc == pytest.approx({row: mean_auroc(report, row) for row in report.methods})
    assert found.best == max(means, key=lambda row: means[row])
    assert found.kind == "clear"
    assert found.use == found.best
    assert found.sentence.startswith(f"Use {found.best} (")
    assert not found.ties
    assert all(rival.lead.low > 0 for rival in found.rivals)
    gaps = [rival.lead.value for rival in found.rivals]
    assert gaps == sorted(gaps)


def test_rows_that_cannot_be_told_apart_are_said_to_be_so(report: Report) -> None:
    near = copy.deepcopy(report)
    near.benchmark.groups = {"near": ["pale"]}
    near.methods = {row: near.methods[row] for row in ("msp", "ebo", "react", "ash-s")}
    near.__dict__["scores"] = report.scores
    found = answer(near)
    assert found.kind == "tie"
    assert found.ties
    assert "cannot be told apart" in found.sentence
    for row in [found.best, *found.ties]:
        assert row in found.sentence
    for row in set(near.methods) - {found.best}:
        scores = [report.scores.of(each, name) for each in (found.best, row) for name in ("id_test", "pale")]
        assert (row in found.ties) == (compare_auroc(*scores, level=joint_level(4)).low <= 0)


def test_in_a_tie_a_method_without_training_images_and_options_is_preferred(report: Report) -> None:
    some = without_validation(report)
    some.benchmark.groups = {"near": ["pale"]}
    some.methods = {row: some.methods[row] for row in ("react", "scale", "ebo")}
    found = answer(some)
    assert found.kind == "tie"
    assert found.best == "scale"  # which has options; react has learned besides
    assert found.use == "ebo"
    assert "needs neither training images nor options" in found.sentence


def test_the_row_is_chosen_on_validation_data_whatever_the_test_sets_say(report: Report) -> None:
    other = copy.deepcopy(report)
    other.__dict__["scores"] = report.scores
    worst = min(report.answer.auroc, key=lambda row: report.answer.auroc[row])
    other.methods[worst].validation_auroc = 1.0
    found = answer(other)
    assert found.use == worst
    assert found.best == report.answer.best
    assert found.kind == "behind"
    lead = next(rival.lead for rival in found.rivals if rival.row == worst)
    assert f"in hindsight {found.best} is {100 * lead.value:.2f} points ahead" in found.sentence


def test_without_validation_data_the_advice_on_the_network_is_followed(report: Report) -> None:
    other = without_validation(report)
    other.advised, other.advised_why = "msp", "Use msp: for a reason."
    found = answer(other)
    assert found.use == "msp"
    assert any(line.endswith("on ID images: Use msp: for a reason.") for line in found.evidence)
    other.advised = "nosuch"
    assert answer(other).use == report.answer.best


def without_validation(report: Report) -> Report:
    other = copy.deepcopy(report)
    other.__dict__["scores"] = report.scores
    for method in other.methods.values():
        method.validation_auroc = None
    return other


def test_set_by_set_only_what_is_certain_is_called_better(report: Report) -> None:
    some = without_validation(report)
    some.methods = {row: some.methods[row] for row in ("msp", "ebo")}
    found = answer(some)
    assert found.best == "msp"
    gaps = {
        name: compare_auroc(*(report.scores.of(row, part) for row in ("msp", "ebo") for part in ("id_test", name)))
        for name in ("pale", "mixed", "noise", "stripes")
    }
    assert gaps["mixed"].low > 0
    assert gaps["pale"].low < 0 < gaps["pale"].value  # ahead, but that may be chance
    line = next(line for line in found.evidence if line.startswith("Set by set against ebo, the runner-up, msp is"))
    better, _, undecided = line.partition("undecided on")
    for name, gap in gaps.items():
        assert name in (better if gap.low > 0 else undecided)


def test_more_comparisons_ask_for_more_confidence() -> None:
    assert joint_level(2) == pytest.approx(0.95)
    assert joint_level(11) == pytest.approx(0.995)
    assert joint_level(1) == pytest.approx(0.95)


def test_only_one_row_and_no_validation_are_said(tmp_path: Path) -> None:
    report = bench(tmp_path, rows=("ebo",), validation=False)
    found = answer(report)
    assert found.kind == "only"
    assert any("no OOD validation set" in line for line in found.evidence)


def test_an_untrained_network_gets_no_recommendation_it_does_not_deserve(tmp_path: Path) -> None:
    report = bench(tmp_path, rows=("msp", "ebo", "scale"), disturbed=None, any_accuracy=True)
    found = answer(report)
    assert max(found.auroc.values()) < 0.6
    assert found.kind == "useless"
    assert found.sentence.startswith("No method is of use on this network")


def test_no_method_at_all_is_an_error(report: Report) -> None:
    empty = copy.deepcopy(report)
    empty.methods = {}
    with pytest.raises(InputError, match="at least one method"):
        answer(empty)


def test_a_report_carries_its_answer_and_marks(report: Report) -> None:
    assert report.answer == answer(report)
    assert Report.from_json(report.to_json()).answer == report.answer
    for row, item in report.methods.items():
        assert report.answer.intervals[row] == mean_auroc_interval(row_ranks(report, row, ood_weights(report)))
        for found in (*item.sets.values(), *item.groups.values()):
            assert set(found.marks) <= {"auroc", "fpr_at_id_recall", "fpr_at_ood_recall"}


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
    with pytest.raises(StoreError, match=r"holds no scores\.safetensors"):
        conclude(Report.load(tmp_path / "results.json"))


def test_a_folder_of_version_0_1_has_a_page_with_its_answer(tmp_path: Path) -> None:
    old = Report.load(SAMPLES / "results-v1")
    assert old.answer is None
    path = write_html(tmp_path, old)
    assert old.answer is not None
    assert escape(old.answer.sentence) in path.read_text(encoding="utf-8")


def test_each_column_of_aurocs_marks_its_best_and_those_level_with_it(report: Report) -> None:
    rows, read = list(report.methods), report.scores.of
    for name in ood_weights(report):
        marks = {row: report.methods[row].sets[name].marks.get("auroc") for row in rows}
        best = max(rows, key=lambda row: report.methods[row].sets[name].auroc)
        for row in rows:
            scores = [read(each, part) for each in (best, row) for part in ("id_test", name)]
            level = compare_auroc(*scores, level=joint_level(len(rows))).low <= 0
            assert marks[row] == ("best" if row == best else "tie" if level else None)


@pytest.mark.parametrize("function", [fpr_at_id_recall, fpr_at_ood_recall])
def test_each_column_of_fprs_marks_its_best_and_those_level_with_it(report: Report, function: Any) -> None:
    """Against a bootstrap that draws images one by one; near the border the two may differ."""
    rows, read, rng = list(report.methods), report.scores.of, np.random.default_rng(1)
    certain = 0
    for name in ("pale", "noise"):
        marks = {row: report.methods[row].sets[name].marks.get(function.__name__) for row in rows}
        values = {row: function(read(row, "id_test"), read(row, name)) for row in rows}
        best = min(rows, key=lambda row: values[row])
        draws: dict[str, list[float]] = {row: [] for row in rows}
        for _ in range(150):
            ids, oods = (
                rng.integers(size, size=size) for size in (len(read(best, part)) for part in ("id_test", name))
            )
            for row in rows:
                draws[row].append(function(read(row, "id_test")[ids], read(row, name)[oods]))
        assert [row for row in rows if marks[row] == "best"] == [best]
        for row in set(rows) - {best}:
            reach = norm.ppf((1 + joint_level(len(rows))) / 2) * np.std(np.subtract(draws[row], draws[best]))
            gap = values[row] - values[best]
            if not 0.7 * reach < gap < 1.4 * reach:
                certain += 1
                assert marks[row] == ("tie" if gap <= reach else None)
    assert certain >= 6


def test_marks_of_fprs_compare_on_the_same_images(report: Report) -> None:
    """One row is always a little worse on the same images: apart the two look level, paired they do not."""
    few = copy.deepcopy(report)
    few.benchmark.groups = {"near": ["six"]}
    few.methods = {row: few.methods[row] for row in ("msp", "ebo")}
    ids, oods = np.linspace(0, 1, 200), np.linspace(-0.5, 0.6, 120)
    worse = np.where((oods < 0.04) & (oods > -0.04), 0.5, oods)
    arrays = {f"scores/{row}/id_test": ids for row in few.methods}
    few.attach(arrays | {"scores/msp/six": worse, "scores/ebo/six": oods}, {})
    for row in few.methods:
        few.methods[row].sets["six"] = few.methods[row].groups["near"] = set_metrics(ids, few.scores.of(row, "six"))
    mark(few)
    one, other = (few.methods[row].sets["six"] for row in ("ebo", "msp"))
    assert one.intervals["fpr_at_id_recall"][1] > other.intervals["fpr_at_id_recall"][0]
    assert one.marks["fpr_at_id_recall"] == "best"
    assert "fpr_at_id_recall" not in other.marks


def test_a_group_is_marked_by_its_mean(report: Report) -> None:
    for metric, better in (("auroc", max), ("fpr_at_id_recall", min), ("fpr_at_ood_recall", min)):
        for group in ("near", "far"):
            found = {row: item.groups[group] for row, item in report.methods.items()}
            best = better(found, key=lambda row: getattr(found[row], metric))
            assert found[best].marks[metric] == "best"
            assert sum(item.marks.get(metric) == "best" for item in found.values()) == 1

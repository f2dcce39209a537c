from __future__ import annotations

import pytest

from idness import paper
from idness.benchmark.results import MethodResult, Metrics
from idness.paper.compare import Reproduction, TableOutcome, compare_table, missing, slips
from idness.paper.datasets import DataSet


def result(**sets: tuple[float, float]) -> MethodResult:
    """Results with the given (FPR at 95 % ID recall, AUROC), in percent."""
    metrics = {
        name: Metrics(auroc=b / 100, fpr_at_id_recall=a / 100, fpr_at_ood_recall=0.77, aupr_in=0.5, aupr_out=0.5)
        for name, (a, b) in sets.items()
    }
    return MethodResult(
        method="scale", label="", about="", options={}, chosen_by="given", id_accuracy_shaped=0.9454, sets=metrics
    )


def test_each_cell_has_ours_theirs_and_the_difference() -> None:
    table = paper.load("cifar10")
    cells = compare_table(table, {"SCALE": result(isun=(3.54, 99.22), svhn=(5.79, 98.72))})
    found = {(cell.column, cell.metric): cell for cell in cells if cell.row == "SCALE"}
    assert found["iSUN", "fpr"].ours == pytest.approx(3.54)
    assert found["iSUN", "fpr"].difference == pytest.approx(0.11)
    assert found["iSUN", "auroc"].theirs == 99.21
    assert found["LSUN-c", "auroc"].ours is None
    assert found["LSUN-c", "auroc"].difference is None
    assert found["ID", "id_accuracy"].difference == pytest.approx(0.01)
    # All other rows were not run.
    assert all(cell.ours is None for cell in cells if cell.row != "SCALE")
    assert len(cells) == 6 * 7 * 2 + 4


def test_a_partial_average_is_compared_with_the_papers_over_the_same_sets() -> None:
    table = paper.load("cifar10")
    cells = compare_table(table, {"SCALE": result(isun=(4.0, 99.0), svhn=(6.0, 98.0))})
    mean = next(c for c in cells if (c.row, c.column, c.metric) == ("SCALE", "average", "fpr"))
    assert mean.sets == (2, 6)
    assert mean.partial
    assert mean.ours == pytest.approx(5.0)
    assert mean.theirs == pytest.approx((5.80 + 3.43) / 2, abs=0.006)


def test_the_fpr_is_that_of_the_tables_convention() -> None:
    table = paper.load("imagenet")
    sets = dict.fromkeys(("ssb-hard", "ninco", "inaturalist", "textures", "openimage-o"), (10.0, 90.0))
    cells = compare_table(table, {"EBO": result(**sets)}, paper.load("imagenet-sets"))
    near = next(c for c in cells if (c.row, c.column, c.metric) == ("EBO", "near", "fpr"))
    assert near.ours == pytest.approx(77.0)  # fpr_at_ood_recall
    assert near.theirs == 68.56
    assert not near.partial


def test_a_row_is_compared_with_its_own_numbers_only() -> None:
    """A network trained otherwise uses SCALE too, but plain SCALE's single sets are not its own."""
    found = {row: result(ninco=(1.0, 80.0)) for row in ("ISH", "AugMix", "TorchVision Model")}
    cells = compare_table(paper.load("training"), found, paper.load("imagenet-sets"))
    near = {cell.row: cell for cell in cells if (cell.column, cell.metric) == ("near", "auroc")}
    assert near["TorchVision Model"].theirs == 85.37
    assert near["ISH"].ours is None
    assert (near["ISH"].theirs, near["AugMix"].theirs) == (84.01, 83.55)


def test_what_the_paper_prints_as_plus_minus_is_shown() -> None:
    table = paper.load("cifar10")
    outcome = TableOutcome(
        table, compare_table(table, {"DICE": result(isun=(4.0, 99.0))}), failed={"ReAct": "no images"}
    )
    text = Reproduction([outcome]).to_markdown()
    assert "| DICE | iSUN | 4.00 | 4.36 ± 0.71 | -0.36 | 99.00 | 99.14 ± 0.15 | -0.14 |" in text
    assert "ReAct: not run: no images" in text
    mean = next(cell for cell in outcome.measured if (cell.column, cell.metric) == ("average", "fpr"))
    assert mean.spread is None  # over one set of six


def test_the_papers_slips_are_listed_for_these_tables() -> None:
    listed = slips([TableOutcome(paper.load("imagenet"))]).rows
    assert any("96.53 - 96.47 = 0.06" in note.text for _, _, note in listed)
    assert "cifar10" not in {table.text for table, _, _ in listed}


def test_outcomes_say_how_far_they_go() -> None:
    table = paper.load("cifar10")
    nothing = TableOutcome(table, compare_table(table, {}))
    assert nothing.status == "not reproduced"
    isun, svhn = (
        DataSet("cifar10", "isun", "", "", None, 8925, 8925, available=True),
        DataSet("cifar10", "svhn", "64 MB", "get it"),
    )
    some = TableOutcome(table, compare_table(table, {"SCALE": result(isun=(3.54, 99.22))}), [isun, svhn])
    assert some.status == "partial"
    text = Reproduction([some]).to_markdown()
    assert "| SCALE | iSUN | 3.54 | 3.43 | +0.11 | 99.22 | 99.21 | +0.01 |" in text
    assert "average (1 of 6 sets)" in text
    assert "isun 8,925 of 8,925" in text
    table_of_gaps = missing([some, TableOutcome(paper.load("cifar100"), sets=some.sets)])
    assert table_of_gaps is not None
    assert [cell.text for cell in table_of_gaps.rows[0]] == ["svhn", "cifar10, cifar100", "64 MB", "get it"]
    assert missing([nothing]) is None
    assert "| SCALE | 94.54 | 94.53 | +0.01 |" in text
    full = {row.name: result(**{c.lower(): (1.0, 99.0) for c in row.cells}) for row in table.rows}
    assert TableOutcome(table, compare_table(table, full)).status == "complete"
    few = DataSet("cifar10", "isun", "", "", None, 8925, 10, available=True)
    other = DataSet("cifar10", "places365", "", "", None, 10, 10, "Mini-Places", available=True)
    for item in (few, other):
        assert TableOutcome(table, compare_table(table, full), sets=[item]).status == "partial"
    page = Reproduction([TableOutcome(table, compare_table(table, full), sets=[other])]).to_markdown()
    assert "places365: Mini-Places instead of the paper's images" in page

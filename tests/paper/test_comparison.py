from __future__ import annotations

import pytest

from idness import paper
from idness.benchmark.parts import MethodResult, Metrics
from idness.paper.comparison import Outcome, compare, markdown, tables
from idness.paper.locate import Missing


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
    cells = compare(table, {"SCALE": result(isun=(3.54, 99.22), svhn=(5.79, 98.72))})
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
    cells = compare(table, {"SCALE": result(isun=(4.0, 99.0), svhn=(6.0, 98.0))})
    mean = next(c for c in cells if (c.row, c.column, c.metric) == ("SCALE", "average", "fpr"))
    assert mean.parts == (2, 6)
    assert mean.partial
    assert mean.ours == pytest.approx(5.0)
    assert mean.theirs == pytest.approx((5.80 + 3.43) / 2, abs=0.006)


def test_the_fpr_is_that_of_the_tables_convention() -> None:
    table = paper.load("imagenet")
    sets = dict.fromkeys(("ssb-hard", "ninco", "inaturalist", "textures", "openimage-o"), (10.0, 90.0))
    cells = compare(table, {"EBO": result(**sets)}, paper.load("imagenet-sets"))
    near = next(c for c in cells if (c.row, c.column, c.metric) == ("EBO", "near", "fpr"))
    assert near.ours == pytest.approx(77.0)  # fpr_at_ood_recall
    assert near.theirs == 68.56
    assert not near.partial


def test_an_average_without_single_sets_takes_them_from_the_detailed_table() -> None:
    cells = compare(paper.load("imagenet"), {"EBO": result(ninco=(1.0, 80.0))}, paper.load("imagenet-sets"))
    near = next(c for c in cells if (c.row, c.column, c.metric) == ("EBO", "near", "auroc"))
    assert near.theirs == 79.70
    assert near.ours == pytest.approx(80.0)
    without = compare(paper.load("training"), {"LogitNorm": result(ninco=(1.0, 80.0))})
    assert all(cell.ours is None for cell in without if cell.row == "LogitNorm" and cell.metric != "id_accuracy")


def test_outcomes_say_how_far_they_go() -> None:
    table = paper.load("cifar10")
    nothing = Outcome(table, compare(table, {}))
    assert nothing.status == "not reproduced"
    some = Outcome(
        table,
        compare(table, {"SCALE": result(isun=(3.54, 99.22))}),
        images={"isun": (8925, 8925)},
        missing=[Missing("svhn", "64 MB", "get it")],
    )
    assert some.status == "in part"
    assert some.largest == pytest.approx(0.11)
    text = markdown(some)
    assert "| SCALE | iSUN | 3.54 | 3.43 | +0.11 | 99.22 | 99.21 | +0.01 |" in text
    assert "average (1 of 6 sets)" in text
    assert "isun 8,925 of 8,925" in text
    assert "`get it`" in text
    numbers, accuracies = tables(some)
    assert [[cell.text for cell in row[:2]] for row in numbers.rows] == [
        ["SCALE", "iSUN"],
        ["SCALE", "average (1 of 6 sets)"],
    ]
    assert [[cell.text for cell in row] for row in accuracies.rows] == [["SCALE", "94.54", "94.53", "+0.01"]]
    full = {row.name: result(**{c.lower(): (1.0, 99.0) for c in row.cells}) for row in table.rows}
    assert Outcome(table, compare(table, full)).status == "whole"
    assert Outcome(table, compare(table, full), images={"isun": (10, 8925)}).status == "in part"

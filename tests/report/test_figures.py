from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from idness.benchmark.ranking import mean_auroc
from idness.benchmark.results import Report
from idness.metrics import auroc, id_threshold
from idness.report import figures, style
from idness.report.layout import lowest_shown

DRAWINGS: dict[str, Callable[..., Any]] = {
    "histogram": lambda report, ax=None: figures.score_histogram(report, "scale", "pale", ax=ax),
    "ridges": lambda report, ax=None: figures.score_ridges(report, "scale", ax=ax),
    "roc": lambda report, ax=None: figures.roc_curves(report, "pale", ax=ax),
    "some rocs": lambda report, ax=None: figures.roc_curves(report, "pale", ["ash-p", "knn"], ax=ax),
    "trade-off": lambda report, ax=None: figures.tradeoff(report, "near", ax=ax),
    "sweep": lambda report, ax=None: figures.percentile_sweep(report, "far", ax=ax),
    "ranking": lambda report, ax=None: figures.ranking(report, ax=ax),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_each_figure_draws_on_the_axes_it_is_given_and_the_same_bytes_twice(name: str, report: Report) -> None:
    _, ax = style.new_figure()
    assert DRAWINGS[name](report, ax=ax) is ax
    texts = [style.figure_svg(DRAWINGS[name](report), alt="a", prefix="p") for _ in range(2)]
    assert texts[0] == texts[1]
    assert len(texts[0]) < 60_000
    ElementTree.fromstring(texts[0])


def test_a_roc_curve_has_the_area_of_its_auroc(report: Report) -> None:
    accepted, kept = figures._roc(report, "ebo", "mixed")
    order = np.lexsort((kept, accepted))
    area = np.trapezoid(kept[order], accepted[order])
    expected = auroc(report.scores.of("ebo", "id_test"), report.scores.of("ebo", "mixed"))
    assert area == pytest.approx(expected, abs=2e-3)


def test_the_threshold_keeps_the_recall(report: Report) -> None:
    ids = report.scores.of("knn", "id_test")
    assert (ids > id_threshold(ids, 0.95)).mean() == pytest.approx(0.95, abs=2 / len(ids))


def test_the_row_to_use_the_best_ones_and_the_well_known_stand_out(report: Report) -> None:
    chosen = figures.highlights(report)
    assert report.answer is not None
    assert chosen[0] == report.answer.use
    assert max(report.methods, key=lambda row: mean_auroc(report, row)) in chosen
    for group in ("near", "far"):
        assert max(report.methods, key=lambda row: report.methods[row].groups[group].auroc) in chosen
    assert len(chosen) == figures.HIGHLIGHTED
    looks = [figures.look(report, row) for row in chosen]
    assert len({look.colour for look in looks if look}) == len({look.marker for look in looks if look}) == len(chosen)
    assert all(figures.look(report, row) is None for row in report.methods if row not in chosen)


def test_the_row_to_use_is_marked_in_the_ranking(report: Report) -> None:
    assert report.answer is not None
    labels = figures.ranking(report).get_yticklabels()
    assert [label.get_text() for label in labels if label.get_fontweight() == "bold"] == [report.answer.use]


def test_a_row_has_one_colour_in_curves_and_sweeps(report: Report) -> None:
    lines = {line.get_label().partition(",")[0]: line for line in figures.percentile_sweep(report, "near").get_lines()}
    for row, line in lines.items():
        found = figures.look(report, row)
        if found is not None and row != "ebo":  # there it is the level line, not a curve
            assert line.get_color() == found.colour


@pytest.mark.parametrize(
    "draw", [lambda r: figures.ranking(r).get_xlim(), lambda r: figures.tradeoff(r, "far").get_ylim()]
)
def test_axes_of_auroc_end_at_100(report: Report, draw: Any) -> None:
    assert draw(report)[1] <= 100
    assert max(item.groups["far"].auroc for item in report.methods.values()) > 0.99  # it would reach beyond by itself


def test_names_in_the_trade_off_never_touch(report: Report) -> None:
    one = next(iter(report.methods.values()))
    many = dataclasses.replace(report, methods={f"row-{number:02d}": one for number in range(40)}, answer=None)
    ax = figures.tradeoff(many, "near")
    canvas = FigureCanvasAgg(ax.figure)
    canvas.draw()
    texts = [text for text in ax.texts if text.get_text().startswith("row-")]
    # Of the words alone: an annotation's own extent holds its line too.
    boxes = sorted((Text.get_window_extent(text, canvas.get_renderer()) for text in texts), key=lambda box: box.y0)
    assert len(boxes) == 40
    assert all(above.y0 >= below.y1 for below, above in pairwise(boxes))


def test_one_row_far_below_does_not_squeeze_the_rest() -> None:
    assert lowest_shown([40.0, 80.0, 81.0, 82.0, 83.0]) > 70
    assert lowest_shown([79.0, 80.0, 81.0, 82.0, 83.0]) == 79.0


def test_hatched_ridges_keep_their_hatch_in_svg(report: Report) -> None:
    svg = style.figure_svg(figures.score_ridges(report, "scale"))
    assert "<pattern" in svg
    assert 'fill="none"' in svg[svg.index("<pattern") : svg.index("</pattern>")]

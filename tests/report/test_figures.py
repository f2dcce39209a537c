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

from idness.benchmark.answer import answer, best_first
from idness.benchmark.ranking import mean_auroc
from idness.benchmark.results import Report
from idness.metrics import auroc, id_threshold
from idness.report import figures, style, tables
from idness.report.figures import lowest_shown

DRAWINGS: dict[str, Callable[..., Any]] = {
    "histogram": lambda report, ax=None: figures.score_histogram(report, "scale", "pale", ax=ax),
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
    looks = figures.looks(report)
    assert list(looks) == chosen
    assert len({look.colour for look in looks.values()}) == len({look.marker for look in looks.values()}) == len(chosen)


def test_the_row_to_use_is_marked_in_the_ranking(report: Report) -> None:
    assert report.answer is not None
    labels = figures.ranking(report).get_yticklabels()
    assert [label.get_text() for label in labels if label.get_fontweight() == "bold"] == [report.answer.use]


def test_a_row_has_one_colour_in_curves_and_sweeps(report: Report) -> None:
    lines = {line.get_label().partition(",")[0]: line for line in figures.percentile_sweep(report, "near").get_lines()}
    for row, line in lines.items():
        found = figures.looks(report).get(row)
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


def test_a_degenerate_row_stands_last_whatever_its_mean(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    first = best_first(report)[0]
    methods = report.methods | {first: dataclasses.replace(report.methods[first], degenerate=True)}
    spoilt = dataclasses.replace(report, methods=methods, answer=None)
    monkeypatch.setattr(type(spoilt), "scores", report.scores)
    spoilt.answer = answer(spoilt)
    assert best_first(spoilt)[-1] == first
    assert spoilt.answer.best != first
    assert figures.ranking(spoilt).get_yticklabels()[0].get_text() == first  # the lowest line
    assert [row[0].text for row in tables.summary(spoilt).rows][-1] == first


def test_values_outside_a_histogram_are_told() -> None:
    inside = np.linspace(0, 1, 995)
    ax = style.two_histograms(style.axes_or_new(), inside, np.concatenate([inside, [50.0] * 5]), ("ID", "OOD"))
    assert ax.get_xlim()[1] < 50
    told = [text.get_text() for text in ax.texts if "beyond" in text.get_text()]
    low, high = ax.patches[0].get_data().edges[[0, -1]]
    values = np.concatenate([inside, inside, [50.0] * 5])
    assert told == [f"{100 * ((values < low) | (values > high)).mean():.2g} % beyond"]
    alike = style.two_histograms(style.axes_or_new(), np.zeros(9), np.zeros(9), ("ID", "OOD"))
    assert list(alike.texts) == []


def test_a_curve_that_leaves_the_picture_says_how_deep_it_falls(report: Report) -> None:
    assert report.sweep is not None
    curve = [*report.sweep.auroc["scale"]["far"][:-1], 0.11]
    deep = report.sweep.auroc | {"scale": report.sweep.auroc["scale"] | {"far": curve}}
    ax = figures.percentile_sweep(
        dataclasses.replace(report, sweep=dataclasses.replace(report.sweep, auroc=deep)), "far"
    )
    lines = [line for line in ax.get_lines() if not line.get_label().startswith("_")]  # rings have no label
    labels = {line.get_label().partition(",")[0]: line for line in lines}
    for line in lines:
        leaves = min(line.get_ydata()) < ax.get_ylim()[0]
        assert leaves == ("down to" in line.get_label())
    assert "down to 11" in labels["scale"].get_label()

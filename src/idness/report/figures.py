"""Figures of a report. Each draws on the given axes or on new ones and returns the axes; `score_ridges` returns SVG text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.ticker import MaxNLocator, ScalarFormatter
from numpy.typing import NDArray

from idness.benchmark.answer import contenders
from idness.benchmark.results import Report, best_first, ood_weights
from idness.core.text import drawn, percentage, shorten
from idness.metrics import id_threshold
from idness.report import style

SMALL = 8
"""Size of text inside a figure, in points."""
WIDTH = 4.0
"""Width of a figure in inches, so that its text is readable on a phone."""
HIGHLIGHTED = 6
"""Number of methods with their own colour and marker; the others are grey."""
BASELINES = ("scale", "ash-s", "ebo", "msp", "knn", "react")
BINS = 48
"""Number of bins of the histograms of `score_ridges`."""

Array = NDArray[Any]


def looks(report: Report) -> dict[str, style.Mark]:
    """Return the marks of the highlighted methods, the same in every figure of a report.

    These are the recommended method, the best ones, and well-known ones.
    """
    ranked, able = best_first(report), contenders(report)
    leaders = [max(able, key=lambda row: report.methods[row].groups[group].auroc) for group in report.benchmark.groups]
    familiar = [row for row in BASELINES if row in report.methods]
    use = [report.answer.use] if report.answer else []
    chosen = dict.fromkeys([*use, *ranked[:1], *leaders, *familiar, *ranked[1:]])
    return {row: style.mark(index) for index, row in enumerate(list(chosen)[:HIGHLIGHTED])}


def roc_curves(report: Report, name: str, rows: Sequence[str] | None = None, ax: Any = None) -> Any:
    """Draw the fraction of accepted ID images against that of one OOD set, for some methods or all."""
    if ax is None:
        # Fixed margins: computing them would double the time of a report with many of these figures.
        ax = style.new_figure(size=(3.0, 2.8), layout="none")[1]
        ax.set_position((0.18, 0.165, 0.78, 0.725))
    marks = looks(report)
    chosen = list(marks) if rows is None else list(rows)
    with style.house_style():
        ax.plot([0, 100], [0, 100], color=style.MUTED, linewidth=0.8, linestyle=style.LINES[2])
        ax.axhline(100 * report.recall, color=style.MUTED, linewidth=0.8)
        others = [row for row in report.methods if row not in marks] if rows is None else []
        curves = [100 * np.column_stack(_roc(report, row, name)) for row in others]
        # One artist for many lines, since creating one each would take longer than drawing.
        ax.add_collection(LineCollection(curves, color=style.MUTED, linewidth=0.6, alpha=0.5, zorder=2), autolim=False)
        for index, row in reversed(list(enumerate(chosen))):
            mark = marks.get(row) or style.mark(index)
            accepted, kept = _roc(report, row, name)
            ax.plot(100 * accepted, 100 * kept, color=mark.colour, linestyle=mark.line, linewidth=1.6, label=drawn(row))
        ax.set_xlim(-1, 100)
        ax.set_ylim(0, 101)
        style.headline(ax, drawn(name), x="OOD accepted, %", y="ID accepted, %", at_top=True)
    return ax


def tradeoff(report: Report, group: str, ax: Any = None) -> Any:
    """Draw the AUROC of each method against the ID accuracy of its edited network; up and right is better."""
    points = {
        row: (item.id_accuracy_shaped, item.groups[group].auroc)
        for row, item in report.methods.items()
        if item.id_accuracy_shaped is not None
    }
    return draw_tradeoff(points, looks(report), report.id_accuracy, f"{drawn(group)} OOD", ax)


def draw_tradeoff(
    points: Mapping[str, tuple[float, float]],
    marks: Mapping[str, style.Mark],
    plain: float | None,
    title: str,
    ax: Any = None,
) -> Any:
    """Draw methods by ID accuracy and AUROC; those in `marks` are named, and a line shows the plain network's accuracy."""
    found = [(row, 100 * accuracy, 100 * auroc) for row, (accuracy, auroc) in points.items()]
    ax = style.axes_or_new(ax, size=(WIDTH, 3.8))
    with style.house_style():
        if plain is not None:
            ax.axvline(100 * plain, color=style.MUTED, linewidth=0.8, linestyle=style.LINES[2])
        for row, accuracy, auroc in sorted(found, key=lambda entry: entry[0] in marks):
            mark = marks.get(row)
            look = {"color": style.MUTED, "markersize": 3.5, "marker": "o"}
            if mark:
                look = {"color": mark.colour, "markersize": 6.5, "marker": mark.marker, "label": drawn(row)}
            ax.plot([accuracy], [auroc], zorder=3, **look)
        style.headline(ax, title, x="ID accuracy of the edited network, %", y="AUROC, %", at_top=True)
        if found:  # most methods have the same accuracy
            low, high = min(accuracy for _, accuracy, _ in found), max(accuracy for _, accuracy, _ in found)
            room = max(1.0 - (high - low), 0.1 * (high - low)) / 2
            ax.set_xlim(low - room, high + room)
            style.draw_legend(ax, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.16))
        ax.set_ylim(top=min(ax.get_ylim()[1], 100.0))
    return ax


def ranking(report: Report, ax: Any = None) -> Any:
    """Draw the group AUROCs of every method with their 95 % intervals, best mean on top."""
    rows = best_first(report)[::-1]
    ax = style.axes_or_new(ax, size=(WIDTH, 0.9 + 0.2 * len(rows)))
    groups = list(report.benchmark.groups)
    shown = [100 * item.groups[group].auroc for item in report.methods.values() for group in groups]
    low, quarter, upper = np.percentile(shown, [0, 25, 75])
    floor = max(low, quarter - 3 * (upper - quarter) - 1.0)  # ignores a value far below all others
    with style.house_style():
        for index, group in enumerate(groups):
            mark = style.mark(index)
            metrics = [report.methods[row].groups[group] for row in rows]
            values = np.array([100 * found.auroc for found in metrics])
            ends = 100 * np.array([found.intervals.get("auroc", (found.auroc, found.auroc)) for found in metrics])
            places = np.arange(len(rows)) + 0.16 * ((len(groups) - 1) / 2 - index)
            inside = values >= floor
            ax.hlines(places[inside], *ends[inside].T, color=mark.colour, linewidth=1.4)
            label = f"{drawn(group)} OOD"
            ax.plot(values[inside], places[inside], mark.marker, color=mark.colour, markersize=4.5, label=label)
            for value, place in zip(values[~inside], places[~inside], strict=True):
                ax.plot([floor], [place], "<", color=mark.colour, markersize=4.5)
                offset = {"xytext": (4, 0), "textcoords": "offset points"}
                ax.annotate(f" {value:.1f}", (floor, place), fontsize=SMALL, va="center", **offset)
        ax.set_yticks(range(len(rows)), [drawn(row) for row in rows])
        ax.tick_params(axis="y", length=0)
        if report.answer is not None:
            place = rows.index(report.answer.use)
            ax.get_yticklabels()[place].set_fontweight("bold")
            ax.axhspan(place - 0.45, place + 0.45, color=style.MUTED, alpha=0.14, linewidth=0)
        ax.set_ylim(-0.6, len(rows) - 0.4)
        ax.set_xlim(right=min(ax.get_xlim()[1], 100.0))
        ax.grid(True, axis="y", alpha=0.15)
        style.headline(ax, "", x="AUROC, % (line: 95 % interval)", at_top=True)
        style.draw_legend(ax, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=max(len(groups), 1), borderaxespad=0.2)
    return ax


def score_ridges(report: Report, row: str, prefix: str = "ridges") -> str:
    """Return an SVG of a method's scores: one histogram per OOD set below that of the ID images, with the threshold.

    A page has one per method, whose ids start with `prefix`. A template takes milliseconds; matplotlib takes a tenth of a second.
    """
    names = list(ood_weights(report))
    sides = [np.asarray(report.scores.of(row, name), float) for name in ("id_test", *names)]
    passed = [f"{percentage(report.methods[row].sets[name].fpr_at_id_recall, 1)} %" for name in names]
    labels = ["ID test", *(shorten(name, 16) for name in names)]
    edges = style.shared_bins(sides, BINS)
    room = 0.02 * (edges[-1] - edges[0])
    low, high = float(edges[0] - room), float(edges[-1] + room)
    # Positions are in points from the top left.
    width, height, top = 72 * WIDTH, 56.0 + 27.0 * len(sides), 7.0
    left, right, bottom = 8.0 + 5.0 * max(map(len, labels)), width - 36.0, height - 36.0
    step = (bottom - top) / (len(sides) + 0.18)
    feet = [top + step * (level + 1.1) for level in range(len(sides))]

    def across(score: float) -> str:
        return f"{left + (right - left) * (score - low) / (high - low):.1f}"

    def outline(values: Array, foot: float) -> str:
        counts = np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0]
        levels = foot - 0.88 * step * counts / max(counts.max(), 1)
        steps = (f"V{y:.1f}H{across(x)}" for y, x in zip(levels, edges[1:], strict=True))
        return f"M{across(edges[0])} {foot:.1f}{''.join(steps)}V{foot:.1f}"

    ticks, factor = _ticks(low, high, right - left)
    threshold = id_threshold(sides[0], report.recall)
    alt = ", ".join(f"{shorten(name)} {share}" for name, share in zip(names, passed, strict=True))
    ids, *oods = (outline(values, foot) for values, foot in zip(sides, feet, strict=True))
    return style.templates().get_template("ridges.svg").render(
        prefix=prefix, width=width, height=height, left=f"{left:.1f}", right=f"{right:.1f}", top=top, bottom=bottom,
        alt=f"Histograms of the scores of {shorten(row)}. Share of each OOD set that passes: {alt}",
        ids=ids, oods=oods, downs=[f"{foot - feet[0]:.1f}" for foot in feet[1:]],
        threshold=across(threshold) if low <= threshold <= high else "",
        dashes=style.dash_array(style.LINES[1], 1.1),
        lines=[(f"{foot - 0.12 * step:.1f}", *line) for foot, *line in zip(feet, labels, ["passes", *passed], strict=True)],
        ticks=[(across(value), text) for value, text in ticks], factor=factor,
        captions=[f"ID-ness score of {shorten(row, 24)}", f"{100 * report.recall:g} % of ID images are right of the line"],
        fonts=style.FONTS, small=SMALL, blue=style.LIGHTENED[style.ID_COLOUR], orange=style.OOD_COLOUR, grey=style.MUTED,
    )  # fmt: skip


def _ticks(low: float, high: float, length: float) -> tuple[list[tuple[float, str]], str]:
    """Return round numbers along an axis with their labels, and their common factor or offset, if any."""
    most = min(max(int(length // 24), 1), 9)  # each needs the space of three letters
    values = MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    inside = [float(value) for value in values if low <= value <= high]
    writer: Any = ScalarFormatter(useOffset=True, useMathText=False, useLocale=False)
    writer.create_dummy_axis()
    writer.axis.set_view_interval(low, high)
    return list(zip(inside, writer.format_ticks(inside), strict=True)), writer.get_offset()


def _roc(report: Report, row: str, name: str, count: int = 90) -> tuple[Array, Array]:
    """Return points of the ROC curve, evenly spaced along it so that few suffice."""
    ids, oods = np.sort(report.scores.of(row, "id_test")), np.sort(report.scores.of(row, name))
    places = [np.rint(np.linspace(0, len(side) - 1, count)).astype(int) for side in (ids, oods)]
    levels = np.unique(np.concatenate([ids[places[0]], oods[places[1]]]))
    levels = np.concatenate([[levels[0] - 1], levels, [levels[-1] + 1]])
    accepted = 1 - np.searchsorted(oods, levels, side="right") / len(oods)
    kept = 1 - np.searchsorted(ids, levels, side="right") / len(ids)
    return accepted, kept

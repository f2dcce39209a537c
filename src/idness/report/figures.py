"""Figures of a report. Each draws on the given axes or on new ones, and returns the axes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from matplotlib.collections import LineCollection
from numpy.typing import NDArray

from idness.benchmark.parts import Sweep
from idness.benchmark.ranking import contenders, standing
from idness.benchmark.results import Report
from idness.core.wording import drawn
from idness.metrics import id_threshold
from idness.report import style

SMALL = 7.5
"""The size of text inside a figure, in points."""
BOTTOM = 0.46
"""The margin below placed axes, in inches."""


def placed(ax: Any, size: tuple[float, float], labels: Sequence[str], *, right: float = 0.12, top: float = 0.1) -> Any:
    """Give the axes that were passed, or new ones with margins in inches for the longest label.

    A report has dozens of these; finding the margins by drawing each twice would double its time.
    """
    if ax is not None:
        return ax
    # Taking a layout away again would leave one that does nothing, and draws everything first for that.
    _, made = style.new_figure(size=size, layout="none")
    left = left_margin(labels)
    width, height = size
    made.set_position((left / width, BOTTOM / height, 1 - (left + right) / width, 1 - (BOTTOM + top) / height))
    return made


def left_margin(labels: Sequence[str]) -> float:
    """Find how many inches the longest label takes."""
    return 0.15 + 0.078 * max(map(len, labels))


def lowest_shown(values: Sequence[float]) -> float:
    """Find where an axis may begin so that one row far below all others does not squeeze the rest."""
    low, quarter, upper = np.percentile(values, [0, 25, 75])
    return float(max(low, quarter - 3 * (upper - quarter) - 1.0))


def widen(ax: Any, values: Sequence[float]) -> None:
    """Give the horizontal axis at least one point of accuracy: most rows have the same."""
    if values:
        low, high = min(values), max(values)
        room = max(1.0 - (high - low), 0.1 * (high - low)) / 2
        ax.set_xlim(low - room, high + room)


def end_at_100(axis: Any) -> None:
    """End an axis of percent at 100: there is nothing beyond."""
    low, high = axis.get_view_interval()
    axis.axes.set(**{f"{axis.axis_name}lim": (low, min(high, 100.0))})


def labels_beside(ax: Any, points: Sequence[tuple[str, float, float, bool]]) -> None:
    """Write names in a column right of the axes, apart from each other, with a thin line to each point."""
    if not points:
        return
    low, high = ax.get_ylim()
    ordered = sorted(points, key=lambda point: point[2])
    step = min(0.052, 1.0 / len(ordered))
    heights = [(y - low) / (high - low) for _, _, y, _ in ordered]
    for index in range(1, len(heights)):
        heights[index] = max(heights[index], heights[index - 1] + step)
    over = max(0.0, heights[-1] - 1.0)
    for index in reversed(range(len(heights))):
        ceiling = heights[index + 1] - step if index + 1 < len(heights) else heights[index] - over
        heights[index] = min(heights[index], ceiling)
    left, right = ax.get_xlim()
    edge = left + 1.04 * (right - left)
    # Arrows of matplotlib would be cut to text and point by halving, which takes longer than all else in the figure.
    lines = [
        [(x, y), (edge, low + height * (high - low))] for (_, x, y, _), height in zip(ordered, heights, strict=True)
    ]
    ax.add_artist(LineCollection(lines, color=style.MUTED, linewidth=0.4, clip_on=False, zorder=1))
    for (name, _, _, bold), height in zip(ordered, heights, strict=True):
        weight = "bold" if bold else "normal"
        ax.text(1.05, height, name, transform=ax.transAxes, fontsize=SMALL, fontweight=weight, va="center")


@contextmanager
def quiet() -> Iterator[None]:
    """Keep quiet about letters that the font lacks: the page's own fonts have them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Gg]lyph.*")
        yield


HIGHLIGHTED = 6
"""Series with a look of their own; an eye follows no more."""
BASELINES = ("scale", "ash-s", "ebo", "msp", "knn", "react")
SWEPT = {"scale": "scaling only", "ash-p": "pruning only", "ash-s": "both"}
NUMBERS = "0" * 6
"""As wide as the numbers of an axis and what they are, which stands beside them."""
TITLE = 0.3
"""The margin above axes for a title or a line of legend, in inches."""
DEPTH = 15.0
"""Points of AUROC below the best that a sweep shows; curves that fall deeper leave the picture, and the legend says how deep."""

Array = NDArray[Any]


def highlights(report: Report) -> list[str]:
    """Choose the rows that have a look of their own: the one to use, the best of all and of each group, then familiar ones."""
    ranked = sorted(report.methods, key=lambda row: standing(report, row), reverse=True)
    leaders = [
        max(contenders(report), key=lambda row: report.methods[row].groups[group].auroc)
        for group in report.benchmark.groups
        if all(group in item.groups for item in report.methods.values())
    ]
    familiar = [row for row in BASELINES if row in report.methods]
    use = [report.answer.use] if report.answer else []
    return list(dict.fromkeys([*use, *ranked[:1], *leaders, *familiar, *ranked[1:]]))[:HIGHLIGHTED]


def looks(report: Report) -> dict[str, style.Mark]:
    """Give the rows that stand out their looks, the same in every figure of a report; the others stay in the background."""
    return {row: style.mark(index) for index, row in enumerate(highlights(report))}


def score_histogram(report: Report, row: str, name: str, ax: Any = None) -> Any:
    """Draw the scores of ID images against those of one OOD set, with the threshold at the report's ID recall."""
    ax = style.axes_or_new(ax)
    ids, oods = report.scores.of(row, "id_test"), report.scores.of(row, name)
    with quiet():
        style.two_histograms(ax, ids, oods, ("ID", drawn(name)))
        _threshold_line(ax, report, id_threshold(ids, report.recall))
        style.legend(ax)
        style.headline(ax, f"{drawn(row)}: ID against {drawn(name)}", x="ID-ness score")
    return ax


def roc_curves(report: Report, name: str, rows: Sequence[str] | None = None, ax: Any = None) -> Any:
    """Draw the share of ID images kept against the share of one OOD set accepted, for some rows or for all."""
    ax = placed(ax, (3.0, 2.8), ["10000"], top=TITLE)
    marks = looks(report)
    chosen = list(marks) if rows is None else list(rows)
    with style.house_style(), quiet():
        ax.plot([0, 100], [0, 100], color=style.MUTED, linewidth=0.8, linestyle=style.LINES[2])
        ax.axhline(100 * report.recall, color=style.MUTED, linewidth=0.8)
        others = [row for row in report.methods if row not in marks] if rows is None else []
        curves = [100 * np.column_stack(_roc(report, row, name)) for row in others]
        # One artist of many lines: each of its own would cost more than what it draws.
        ax.add_collection(LineCollection(curves, color=style.MUTED, linewidth=0.6, alpha=0.5, zorder=2), autolim=False)
        for index, row in reversed(list(enumerate(chosen))):
            found = marks.get(row) or style.mark(index)
            accepted, kept = _roc(report, row, name)
            ax.plot(
                100 * accepted, 100 * kept, color=found.colour, linestyle=found.line, linewidth=1.6, label=drawn(row)
            )
        ax.set_xlim(-1, 100)
        ax.set_ylim(0, 101)
        style.headline(ax, drawn(name), x="OOD accepted, %", y="ID kept, %", at_top=True)
    return ax


def tradeoff(report: Report, group: str, ax: Any = None) -> Any:
    """Draw each row's group AUROC against the ID accuracy of its edited network: up and right is better."""
    found = [
        (row, 100 * item.id_accuracy_shaped, 100 * item.groups[group].auroc)
        for row, item in report.methods.items()
        if item.id_accuracy_shaped is not None
    ]
    floor = lowest_shown([auroc for _, _, auroc in found]) if found else 0.0
    names = [drawn(row) + (f" {y:.1f}" if y < floor else "") for row, _, y in found]
    # Names stand in a column beside the points, and each needs its line.
    extent = 4.3, max(3.8, 1.0 + 0.125 * len(report.methods))
    ax = placed(ax, extent, [NUMBERS], right=0.2 + 0.065 * max(map(len, names), default=0), top=TITLE)
    marks = looks(report)
    with style.house_style(), quiet():
        if report.id_accuracy is not None:
            ax.axvline(100 * report.id_accuracy, color=style.MUTED, linewidth=0.8, linestyle=style.LINES[2])
        alike: dict[tuple[str, str, float], list[tuple[float, float]]] = {}
        for row, accuracy, auroc in found:
            mark = marks.get(row)
            marker = "v" if auroc < floor else mark.marker if mark else "o"
            kind = (marker, mark.colour, 6.5) if mark else (marker, style.MUTED, 3.5)
            alike.setdefault(kind, []).append((accuracy, max(auroc, floor)))
        for (marker, colour, size), points in sorted(alike.items(), key=lambda item: item[0][2]):
            ax.plot(*zip(*points, strict=True), marker, color=colour, markersize=size, zorder=3)
        style.headline(ax, f"{drawn(group)} OOD", x="ID accuracy of the edited network, %", y="AUROC, %", at_top=True)
        widen(ax, [accuracy for _, accuracy, _ in found])
        end_at_100(ax.yaxis)
        places = [(x, max(y, floor), row in marks) for row, x, y in found]
        labels_beside(ax, [(name, *place) for name, place in zip(names, places, strict=True)])
    return ax


def percentile_sweep(report: Report, group: str, ax: Any = None) -> Any:
    """Draw AUROC against the percentile for scaling, pruning and both; a ring marks what validation data chose."""
    ax = placed(ax, (4.3, 3.0), [NUMBERS], top=TITLE)
    sweep, marks = report.sweep, looks(report)
    with style.house_style(), quiet():
        style.headline(ax, f"{drawn(group)} OOD", x="percentile p", y="AUROC, %", at_top=True)
        if sweep is None:
            return ax
        bottom, top = _sweep_limits(sweep, group)
        for index, (row, curves) in enumerate(sweep.auroc.items()):
            if group not in curves:
                continue
            mark = marks.get(row) or style.mark(HIGHLIGHTED + index)
            values = 100 * np.asarray(curves[group])
            what = f"{drawn(row)}, {SWEPT[row]}" if row in SWEPT else drawn(row)
            what += style.depth_words(values, bottom)
            ax.plot(sweep.percentiles, values, color=mark.colour, linestyle=mark.line, label=what)
            chosen = report.methods[row].options.get("percentile") if row in report.methods else None
            if chosen is not None:
                height = float(np.interp(chosen, sweep.percentiles, values))
                ax.plot([chosen], [height], marker="o", markersize=8, markerfacecolor="none", color=mark.colour)
        if group in sweep.ebo:
            ax.set_ylim(bottom=bottom, top=top)
            ax.axhline(
                100 * sweep.ebo[group], color=style.MUTED, linewidth=1.2, linestyle=style.LINES[2], label="ebo, neither"
            )
        style.legend(ax, loc="lower left")
    return ax


def _sweep_limits(sweep: Sweep, group: str) -> tuple[float, float]:
    """Choose what of the curves is shown: they may fall to chance at high percentiles, but what matters happens near the top."""
    values = [100 * value for curves in sweep.auroc.values() for value in curves.get(group, ())]
    values += [100 * sweep.ebo[group]] if group in sweep.ebo else []
    if not values:
        return 0.0, 100.0
    low, high = min(values), max(values)
    return max(low - 0.5, high - DEPTH), min(high + 0.04 * min(high - low, DEPTH) + 0.2, 100)


def ranking(report: Report, ax: Any = None) -> Any:
    """Draw every row's group AUROCs with their 95 % intervals, the best mean on top."""
    rows = sorted(report.methods, key=lambda row: standing(report, row))
    ax = placed(ax, (5.0, 0.9 + 0.2 * len(rows)), [drawn(row) for row in rows], top=TITLE)
    groups = list(report.benchmark.groups)
    every = [100 * item.groups[group].auroc for item in report.methods.values() for group in groups]
    floor = lowest_shown(every)
    with style.house_style(), quiet():
        for index, group in enumerate(groups):
            mark = style.mark(index)
            shift = 0.16 * ((len(groups) - 1) / 2 - index)
            values = np.array([100 * report.methods[row].groups[group].auroc for row in rows])
            ends = [report.methods[row].groups[group].intervals.get("auroc") for row in rows]
            lows, highs = (
                np.array([100 * end[side] if end else value for end, value in zip(ends, values, strict=True)])
                for side in (0, 1)
            )
            places = np.arange(len(rows)) + shift
            inside = values >= floor
            ax.hlines(places[inside], lows[inside], highs[inside], color=mark.colour, linewidth=1.4)
            label = f"{drawn(group)} OOD"
            ax.plot(values[inside], places[inside], mark.marker, color=mark.colour, markersize=4.5, label=label)
            for value, place in zip(values[~inside], places[~inside], strict=True):
                ax.plot([floor], [place], "<", color=mark.colour, markersize=4.5)
                ax.annotate(
                    f" {value:.1f}",
                    (floor, place),
                    fontsize=SMALL,
                    va="center",
                    xytext=(4, 0),
                    textcoords="offset points",
                )
        ax.set_yticks(range(len(rows)), [drawn(row) for row in rows])
        ax.tick_params(axis="y", length=0)
        if report.answer is not None:
            place = rows.index(report.answer.use)
            ax.get_yticklabels()[place].set_fontweight("bold")
            ax.axhspan(place - 0.45, place + 0.45, color=style.MUTED, alpha=0.14, linewidth=0)
        ax.set_ylim(-0.6, len(rows) - 0.4)
        end_at_100(ax.xaxis)
        ax.grid(True, axis="y", alpha=0.15)
        style.headline(ax, "", x="AUROC, % (line: 95 % interval)", at_top=True)
        style.legend(ax, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=max(len(groups), 1), borderaxespad=0.2)
    return ax


def _roc(report: Report, row: str, name: str, count: int = 90) -> tuple[Array, Array]:
    """Compute points of the curve, evenly spread along it so that few are enough."""
    ids, oods = np.sort(report.scores.of(row, "id_test")), np.sort(report.scores.of(row, name))
    places = [np.rint(np.linspace(0, len(side) - 1, count)).astype(int) for side in (ids, oods)]
    levels = np.unique(np.concatenate([ids[places[0]], oods[places[1]]]))
    levels = np.concatenate([[levels[0] - 1], levels, [levels[-1] + 1]])
    accepted = 1 - np.searchsorted(oods, levels, side="right") / len(oods)
    kept = 1 - np.searchsorted(ids, levels, side="right") / len(ids)
    return accepted, kept


def _threshold_line(ax: Any, report: Report, threshold: float, label: bool = True) -> None:
    words = f"{100 * report.recall:g} % of ID above" if label else None
    with style.house_style():
        ax.axvline(threshold, color=style.INK, linewidth=1.1, linestyle=style.LINES[1], label=words)

"""The scores of one method on every set as ridges: what they show, and where it goes in the picture of a page.

A page has one such picture per method. Filled into a template it takes milliseconds; drawn by matplotlib, a hundred.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.ticker import MaxNLocator, ScalarFormatter
from numpy.typing import NDArray

from idness.benchmark.ranking import ood_weights
from idness.benchmark.results import Report
from idness.core.wording import percent, shown
from idness.metrics import id_threshold
from idness.report import style
from idness.report.figures import BOTTOM, SMALL, left_margin

BINS = 48
HEIGHT = 0.88
"""Of a ridge, where the next one stands 1 above it."""
LIFT = 0.12
"""How far above the foot of a ridge the share beside it stands."""
BELOW, ABOVE = 0.08, 1.1
"""What the axes have below the last foot and above the first."""
WIDTH, RIGHT, TOP = 5.4, 0.55, 0.1
"""Of the picture and of two of its margins, in inches."""
LONGEST = 24
TICK_SIZE = 8
"""Of the numbers below the axis, in points."""

Array = NDArray[Any]


class Ridges(NamedTuple):
    """Holds what the ridges of one row show: those of the ID images first, then of each OOD set."""

    names: list[str]
    edges: Array
    heights: list[Array]
    passed: list[str]
    threshold: float
    words: str

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of the picture, in inches."""
        return WIDTH, 0.9 + 0.4 * len(self.names)

    @property
    def limits(self) -> tuple[float, float]:
        """The scores at both ends of the axis."""
        room = 0.02 * (self.edges[-1] - self.edges[0])
        return float(self.edges[0] - room), float(self.edges[-1] + room)


def score_ridges(report: Report, row: str, prefix: str = "ridges") -> str:
    """Return an SVG of a method's scores: one histogram per OOD set below that of the ID images, with the threshold.

    Args:
        report: the results.
        row: the method.
        prefix: start of every id, so that several figures fit on one page.
    """
    places = picture(ridges_of(report, row))
    return style.templates().get_template("ridges.svg").render(prefix=prefix, alt=_alt(report, row), **places)


def ridges_of(report: Report, row: str) -> Ridges:
    """Count a row's scores of every set in common bins."""
    names = list(ood_weights(report))
    sides = [np.asarray(report.scores.of(row, name), float) for name in ("id_test", *names)]
    edges = _edges(sides)
    counts = [np.histogram(side, BINS, (edges[0], edges[-1]))[0] for side in sides]
    words = f"ID-ness score of {shown(row, LONGEST)}; {100 * report.recall:g} % of ID lie right of the line"
    left_out = style.beyond_words(np.concatenate(sides), edges[0], edges[-1])
    return Ridges(
        names=["ID test", *(shown(name, LONGEST) for name in names)],
        edges=edges,
        heights=[HEIGHT * count / max(count.max(), 1) for count in counts],
        passed=["passes", *(f"{percent(report.methods[row].sets[name].fpr_at_id_recall, 1)} %" for name in names)],
        threshold=id_threshold(sides[0], report.recall),
        words=f"{words}; {left_out}" if left_out else words,
    )


def picture(found: Ridges) -> dict[str, Any]:
    """Say where everything of a picture goes, in points from its top left, and what colour it has, for its template."""
    width, height = (72 * side for side in found.size)
    left, right = 72 * left_margin(found.names), width - 72 * RIGHT
    top, bottom = 72 * TOP, height - 72 * BOTTOM
    low, high = found.limits
    step = (bottom - top) / (len(found.names) - 1 + ABOVE + BELOW)

    def across(score: float) -> str:
        return tenth(left + (right - left) * (score - low) / (high - low))

    feet = [top + step * (level + ABOVE) for level in range(len(found.names))]
    edges = [across(edge) for edge in found.edges.tolist()]
    ids, *oods = (outline(edges, line.tolist(), foot, step) for line, foot in zip(found.heights, feet, strict=True))
    ticks, factor = _ticks(low, high, right - left)
    lines = [foot - LIFT * step for foot in feet]
    return {
        "width": f"{width:g}",
        "height": f"{height:g}",
        "left": tenth(left),
        "right": tenth(right),
        "top": tenth(top),
        "bottom": tenth(bottom),
        "ids": ids,
        "oods": oods,
        "downs": [tenth(foot - feet[0]) for foot in feet[1:]],
        "threshold": across(found.threshold) if low <= found.threshold <= high else "",
        "dashes": " ".join(f"{1.1 * part:g}" for part in style.LINES[1][1]),
        # Where matplotlib puts the feet of letters.
        "beside": tenth(left - 3.5),
        "names": [(tenth(line + 0.38 * TICK_SIZE), name) for line, name in zip(lines, found.names, strict=True)],
        "after": tenth(right + 0.015 * (right - left)),
        "shares": [(tenth(line), words) for line, words in zip(lines, found.passed, strict=True)],
        "below": tenth(bottom + 13.1),
        "ticks": [(across(tick), words) for tick, words in ticks],
        "factor": factor,
        "middle": tenth((left + right) / 2),
        "lowest": tenth(bottom + 25.8),
        "words": found.words,
        "fonts": style.FONTS,
        "size": TICK_SIZE,
        "small": SMALL,
        "blue": style.LIGHTENED[style.ID_COLOUR],
        "orange": style.OOD_COLOUR,
        "grey": style.MUTED,
    }


def outline(edges: Sequence[str], heights: Sequence[float], foot: float, step: float) -> str:
    """Write the outline of a ridge as a path of steps, neighbours of one height as one."""
    ground = here = tenth(foot)
    parts = [f"M{edges[0]} {ground}"]
    levels = [tenth(foot - step * height) for height in heights]
    for level, following, edge in zip(levels, [*levels[1:], ""], edges[1:], strict=True):
        if level != here:
            parts.append(f"V{level}")
            here = level
        if level != following:
            parts.append(f"H{edge}")
    if here != ground:
        parts.append(f"V{ground}")
    return "".join(parts)


def tenth(value: float) -> str:
    """Write a place to a tenth of a point, without a point where it is whole."""
    return f"{value:.1f}".removesuffix(".0")


def _ticks(low: float, high: float, length: float) -> tuple[list[tuple[float, str]], str]:
    """Choose round numbers along an axis and write them, and what they are to be multiplied with or added to, if anything."""
    # As many as matplotlib would take: each needs the room of three letters.
    most = min(max(int(length // (3 * TICK_SIZE)), 1), 9)
    values = MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    inside = [float(value) for value in values if low <= value <= high]
    writer: Any = ScalarFormatter(useOffset=True, useMathText=False, useLocale=False)
    writer.create_dummy_axis()
    writer.axis.set_view_interval(low, high)
    return list(zip(inside, writer.format_ticks(inside), strict=True)), writer.get_offset()


def _edges(sides: Sequence[Array]) -> Array:
    """Choose common bins; the last percent on either side would squeeze all the rest into a few of them."""
    ends = [np.percentile(side, [1, 99]) for side in sides]
    low, high = float(min(end[0] for end in ends)), float(max(end[1] for end in ends))
    # Scores that are all alike, or nearly so as numbers go, have no bins between them.
    alike = high - low <= 1e-12 * max(abs(low), abs(high))
    return np.linspace(low, low + max(1.0, 0.001 * abs(low)) if alike else high, BINS + 1)


def _alt(report: Report, row: str) -> str:
    parts = [
        f"{shown(name)} {percent(report.methods[row].sets[name].fpr_at_id_recall, 1)} %" for name in ood_weights(report)
    ]
    return f"Histograms of the scores of {shown(row)}. Share of each OOD set that passes: {', '.join(parts)}"

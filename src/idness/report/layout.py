"""Where things go in a figure: margins, ranges, names beside points."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from matplotlib.collections import LineCollection

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

"""Shows what a method gives in OOD detection and what it costs in ID accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from idness.detector import Detector, Enhancer, score_many
from idness.errors import InputError
from idness.metrics import accuracy, auroc
from idness.report import style
from idness.types import Activations


@dataclass(frozen=True)
class Point:
    """Is one method: its mean AUROC over OOD sets, and the ID accuracy of the network as the method shapes it."""

    name: str
    accuracy: float
    auroc: float


def tradeoff(detectors: Mapping[str, Detector], inside: Activations, outside: Mapping[str, Activations]) -> list[Point]:
    """Measure every fitted detector on labelled ID images and OOD sets."""
    if inside.labels is None:
        raise InputError(
            "tradeoff: ID activations must have labels, got none; accuracy cannot be measured without them"
        )
    listed = list(detectors.values())
    good = score_many(listed, inside)
    bad = [score_many(listed, acts) for acts in outside.values()]
    points = []
    for index, (name, detector) in enumerate(detectors.items()):
        # Only methods that edit the network have logits of their own.
        logits = detector.shaped_logits(inside) if isinstance(detector, Enhancer) else inside.logits
        mean = float(np.mean([auroc(good[index], scores[index]) for scores in bad]))
        points.append(Point(name, accuracy(logits, inside.labels), mean))
    return points


def plot_tradeoff(points: Sequence[Point], ax: Any = None, *, title: str = "ID accuracy against OOD detection") -> Any:
    """Draw each method as a labelled point; up and to the right is better."""
    ax = style.axes_or_new(ax, size=(6.4, 4.2))
    order = sorted(points, key=lambda point: -point.auroc)
    plain = max(point.accuracy for point in points)
    with style.house_style():
        ax.axvline(100 * plain, color=style.MUTED, linestyle="--", linewidth=1)
        for index, point in enumerate(order):
            look = style.mark(index)
            ax.plot(
                100 * point.accuracy,
                100 * point.auroc,
                look.marker,
                color=look.colour,
                markersize=7,
                markeredgecolor=style.PAPER,
            )
        ax.margins(x=0.12, y=0.08)
        ax.set_xlim(right=100 * plain + 0.25 * (ax.get_xlim()[1] - ax.get_xlim()[0]))
        _label(ax, order)
    return style.headline(ax, title, x="ID accuracy as shaped, %", y="mean AUROC, %")


def _label(ax: Any, points: Sequence[Point]) -> None:
    """Write names right of their points, spread evenly where they would overlap."""
    low, high = ax.get_ylim()
    left, right = ax.get_xlim()
    step, shift = (high - low) * 0.046, (right - left) * 0.035
    for column in _columns(points, (right - left) / 16):
        heights = _spread([100 * point.auroc for point in column], step)
        ax.set_ylim(min(ax.get_ylim()[0], heights[-1] - step), max(ax.get_ylim()[1], heights[0] + step))
        for point, height in zip(column, heights, strict=True):
            edge = 100 * max(other.accuracy for other in column)
            ax.annotate(
                point.name,
                (100 * point.accuracy, 100 * point.auroc),
                (edge + shift, height),
                fontsize=8,
                va="center",
                arrowprops={"arrowstyle": "-", "color": style.MUTED, "linewidth": 0.5, "shrinkA": 1, "shrinkB": 4},
            )


def _columns(points: Sequence[Point], width: float) -> list[list[Point]]:
    """Gather points whose names would stand below each other, each column from high to low."""
    columns: list[list[Point]] = []
    for point in sorted(points, key=lambda point: -point.accuracy):
        if columns and 100 * (columns[-1][0].accuracy - point.accuracy) < width:
            columns[-1].append(point)
        else:
            columns.append([point])
    return [sorted(column, key=lambda point: -point.auroc) for column in columns]


def _spread(heights: Sequence[float], step: float) -> list[float]:
    """Push descending heights apart to at least `step`, each run of them around its own middle."""
    runs: list[list[float]] = []
    for height in heights:
        runs.append([height])
        while len(runs) > 1 and _middle(runs[-2]) - _middle(runs[-1]) < step * (len(runs[-2]) + len(runs[-1])) / 2:
            runs[-2:] = [runs[-2] + runs[-1]]
    return [_middle(run) + step * ((len(run) - 1) / 2 - place) for run in runs for place in range(len(run))]


def _middle(run: Sequence[float]) -> float:
    return sum(run) / len(run)

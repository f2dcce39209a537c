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
        ax.set_xlim(right=100 * plain + 0.45 * (ax.get_xlim()[1] - ax.get_xlim()[0]))
        _label(ax, order)
    return style.headline(ax, title, x="ID accuracy as shaped, %", y="mean AUROC, %")


def _label(ax: Any, points: Sequence[Point]) -> None:
    """Write names right of their points, pushed apart downwards where they would overlap."""
    low, high = ax.get_ylim()
    step = (high - low) * 0.042
    x_step = (ax.get_xlim()[1] - ax.get_xlim()[0]) * 0.02
    placed: list[tuple[float, float]] = []
    for point in points:
        x, y = 100 * point.accuracy + x_step, 100 * point.auroc
        while any(abs(x - other_x) < 9 * x_step and abs(y - other_y) < step for other_x, other_y in placed):
            y -= step / 4
        placed.append((x, y))
        ax.annotate(
            point.name,
            (100 * point.accuracy, 100 * point.auroc),
            (x + x_step, y),
            fontsize=8,
            va="center",
            arrowprops={"arrowstyle": "-", "color": style.MUTED, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 3},
        )

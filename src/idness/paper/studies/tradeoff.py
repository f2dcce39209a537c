"""Shows what a method gives in OOD detection and what it costs in ID accuracy."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from idness.core.errors import InputError
from idness.core.progress import heard_warnings
from idness.core.types import Activations
from idness.detectors.detector import Detector, Enhancer, score_many
from idness.metrics import accuracy, auroc
from idness.paper.studies.specimen import Specimen, Study
from idness.report import style
from idness.selection.search import choose, wanted_rows

REACH = 0.25
"""Methods further below the best than this are named, not drawn: they would squeeze all others together."""
NAMED = 12
"""How many of the best have their names beside them; the others are small grey points."""


@dataclass(frozen=True)
class Point:
    """Places one method in the picture: its mean AUROC over OOD sets, and the ID accuracy of the network as the method shapes it."""

    name: str
    accuracy: float
    auroc: float


def tradeoff(detectors: Mapping[str, Detector], ids: Activations, oods: Mapping[str, Activations]) -> list[Point]:
    """Measure every fitted detector on labelled ID images and OOD sets."""
    labels = _labels(ids)
    listed = list(detectors.values())
    good = score_many(listed, ids)
    bad = [score_many(listed, acts) for acts in oods.values()]
    points = []
    for index, (name, detector) in enumerate(detectors.items()):
        # Only methods that edit the network have logits of their own.
        logits = detector.shaped_logits(ids) if isinstance(detector, Enhancer) else ids.logits
        mean = float(np.mean([auroc(good[index], scores[index]) for scores in bad]))
        points.append(Point(name, accuracy(logits, labels), mean))
    return points


def _labels(acts: Activations) -> Tensor:
    if acts.labels is None:
        raise InputError("tradeoff: ID activations must have labels, got none; accuracy cannot be had without them")
    return acts.labels


def plot_tradeoff(
    points: Sequence[Point],
    ax: Any = None,
    *,
    plain: float | None = None,
    title: str = "ID accuracy against OOD detection",
) -> Any:
    """Draw each method as a labelled point; up and to the right is better. A line marks the accuracy of the plain network."""
    ax = style.axes_or_new(ax, size=(6.4, 4.2))
    order = sorted(points, key=lambda point: -point.auroc)
    shown = [point for point in order if point.auroc >= order[0].auroc - REACH]
    with style.house_style():
        if plain is not None:
            ax.axvline(100 * plain, color=style.MUTED, linestyle="--", linewidth=1)
        for point in shown[NAMED:]:
            ax.plot(100 * point.accuracy, 100 * point.auroc, "o", color=style.MUTED, markersize=3.5, alpha=0.6)
        for index, point in enumerate(shown[:NAMED]):
            look = style.mark(index)
            spot = 100 * point.accuracy, 100 * point.auroc
            ax.plot(*spot, look.marker, color=look.colour, markersize=7, markeredgecolor=style.PAPER)
        ax.margins(x=0.12, y=0.08)
        left, right = ax.get_xlim()
        ax.set_xlim(left, right + 0.2 * (right - left))
        _label(ax, shown[:NAMED])
        ax.set_ylim(top=min(ax.get_ylim()[1], 100))
        if len(shown) < len(order):
            lost = ", ".join(f"{point.name} {100 * point.auroc:.0f}" for point in order[len(shown) :])
            words = textwrap.fill(f"far below: {lost}", 95)
            below = {"xytext": (0, -36), "textcoords": "offset points", "va": "top"}
            ax.annotate(words, (0, 0), xycoords="axes fraction", fontsize=7, color=style.MUTED, **below)
    return style.headline(ax, title, x="ID accuracy as shaped, %", y="mean AUROC, %")


def _label(ax: Any, points: Sequence[Point]) -> None:
    """Write names right of their points, spread evenly where they would overlap."""
    low, high = ax.get_ylim()
    left, right = ax.get_xlim()
    step, shift = (high - low) * 0.046, (right - left) * 0.035
    for column in _columns(points, (right - left) / 7):
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


def study(specimen: Specimen) -> Study:
    """Measure every method, its options chosen on validation data where there is any."""
    val = None if specimen.val is None else specimen.val.acts
    train = None if specimen.train is None else specimen.train.acts
    ood_val = {part: found.acts for part, found in specimen.ood_val.items()}
    wanted = wanted_rows()
    if specimen.signed:
        wanted = {name: row for name, row in wanted.items() if not row.detector.assumes_nonnegative}
    with heard_warnings(lambda _: None):  # what does not suit the features or has few images shows in its place
        choices, failed = choose(wanted, specimen.head, train, val, ood_val)
    groups = specimen.groups
    figure, axes = style.new_figure(1, len(groups), size=(6.4 * len(groups), 4.6), squeeze=False)
    numbers: dict[str, Any] = {"left_out": failed}
    words = []
    for ax, (group, members) in zip(axes[0], groups.items(), strict=True):
        points = tradeoff(
            {row: choice.detector for row, choice in choices.items()},
            specimen.ids.acts,
            {part: found.acts for part, found in members.items()},
        )
        plain = accuracy(specimen.ids.acts.logits, _labels(specimen.ids.acts))
        plot_tradeoff(points, ax, plain=plain, title=f"{group.capitalize()} OOD")
        best = max(points, key=lambda point: point.auroc)
        words.append(
            f"{group}: {best.name} leads with AUROC {100 * best.auroc:.1f} at ID accuracy {100 * best.accuracy:.1f}"
        )
        numbers[group] = {point.name: {"accuracy": point.accuracy, "auroc": point.auroc} for point in points}
    line = "; ".join(words)
    alt = f"ID accuracy against OOD detection of every method. {line}"
    return Study(line, numbers, {"tradeoff": (figure, alt)})

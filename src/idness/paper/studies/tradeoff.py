"""The trade-off between OOD detection and ID accuracy of every method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from idness.core.errors import InputError
from idness.core.progress import report_warnings
from idness.core.types import Activations
from idness.detectors.detector import Detector, Enhancer, score_many
from idness.metrics import accuracy, auroc
from idness.paper.studies import Study, StudyData
from idness.report import figures, style
from idness.selection.search import choose, wanted_rows


def measure_tradeoff(
    detectors: Mapping[str, Detector], ids: Activations, oods: Mapping[str, Activations]
) -> dict[str, tuple[float, float]]:
    """Return for every fitted detector the ID accuracy of the network as it shapes it, and the mean AUROC over OOD sets."""
    if ids.labels is None:
        raise InputError("tradeoff: ID activations have no labels, which accuracy needs; pass labelled images")
    listed = list(detectors.values())
    good = score_many(listed, ids)
    bad = [score_many(listed, acts) for acts in oods.values()]
    points = {}
    for index, (name, detector) in enumerate(detectors.items()):
        # Only methods that edit the network have logits of their own.
        logits = detector.shaped_logits(ids) if isinstance(detector, Enhancer) else ids.logits
        mean = float(np.mean([auroc(good[index], scores[index]) for scores in bad]))
        points[name] = accuracy(logits, ids.labels), mean
    return points


def study(data: StudyData) -> Study:
    """Measure every method, with options chosen on validation data if available."""
    val = None if data.val is None else data.val.acts
    train = None if data.train is None else data.train.acts
    ood_val = {part: found.acts for part, found in data.ood_val.items()}
    wanted = wanted_rows()
    if data.signed:
        wanted = {name: row for name, row in wanted.items() if not row.detector.assumes_nonnegative}
    with report_warnings(lambda _: None):  # methods that do not suit the network show it by their place
        choices, failed = choose(wanted, data.head, train, val, ood_val)
    detectors = {row: choice.detector for row, choice in choices.items()}
    height = max(3.8, 1.0 + 0.135 * len(detectors))
    figure, axes = style.new_figure(1, len(data.groups), size=(5.2 * len(data.groups), height), squeeze=False)
    numbers: dict[str, Any] = {"left_out": failed}
    words = []
    for ax, (group, members) in zip(axes[0], data.groups.items(), strict=True):
        points = measure_tradeoff(detectors, data.ids.acts, {part: found.acts for part, found in members.items()})
        order = sorted(points, key=lambda row: -points[row][1])
        marks = {row: style.mark(index) for index, row in enumerate(order[: figures.HIGHLIGHTED])}
        # The energy leaves the network as it is.
        figures.draw_tradeoff(points, marks, points["ebo"][0], f"{group.capitalize()} OOD", ax)
        right, mean = points[order[0]]
        words.append(f"{group}: {order[0]} leads with AUROC {100 * mean:.1f} at ID accuracy {100 * right:.1f}")
        numbers[group] = {row: {"accuracy": right, "auroc": mean} for row, (right, mean) in points.items()}
    line = "; ".join(words)
    alt = f"ID accuracy against OOD detection of every method. {line}"
    return Study(line, numbers, {"tradeoff": (figure, alt)})

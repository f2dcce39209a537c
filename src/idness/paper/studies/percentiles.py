"""Sweeps the percentile: AUROC of pruning (ASH-P), scaling (SCALE) and both (ASH-S)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idness.core.types import Activations, Head
from idness.data import ActivationsSet
from idness.detectors.detector import Detector, fit_many, score_many
from idness.detectors.registry import build
from idness.metrics import auroc
from idness.paper.studies.specimen import Specimen, Study
from idness.report import style

PERCENTILES = (10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 65.0, 70.0, 75.0, 80.0, 85.0, 90.0, 93.0, 95.0, 97.0, 99.0)
KINDS = {"scaling": ("scale", {}), "both": ("ash", {"variant": "s"}), "pruning": ("ash", {"variant": "p"})}
NAMES = {"scaling": "scaling (SCALE)", "both": "both (ASH-S)", "pruning": "pruning (ASH-P)"}
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Sweep:
    """Keeps AUROC by percentile, averaged over OOD sets: curves of `scaling`, `both` and `pruning`, and of the energy `plain`."""

    percentiles: tuple[float, ...]
    auroc: dict[str, Array]
    plain: float

    def best(self, *, lowest: float = 0.0) -> float:
        """Give the percentile of at least `lowest` at which scaling has the highest AUROC; the first of equals."""
        allowed = np.where(np.array(self.percentiles) >= lowest, self.auroc["scaling"], -1.0)
        return self.percentiles[int(allowed.argmax())]


def sweep(
    head: Head, ids: Activations, oods: Mapping[str, Activations], percentiles: Sequence[float] = PERCENTILES
) -> Sweep:
    """Compute AUROC for every percentile and kind, as the mean over the OOD sets."""
    detectors: list[Detector] = [build("ebo")]
    for name, fixed in KINDS.values():
        detectors += [build(name, percentile=float(p), **fixed) for p in percentiles]
    fit_many(detectors, head)
    good = score_many(detectors, ids)
    totals = np.zeros(len(detectors))
    for acts in oods.values():
        totals += [auroc(a, b) for a, b in zip(good, score_many(detectors, acts), strict=True)]
    means = totals / len(oods)
    curves = dict(zip(KINDS, means[1:].reshape(len(KINDS), -1), strict=True))
    return Sweep(tuple(float(p) for p in percentiles), curves, float(means[0]))


def plot_sweep(result: Sweep, ax: Any = None, *, title: str = "AUROC against the percentile") -> Any:
    """Draw the three curves, the plain energy, and the best percentile of scaling."""
    ax = style.axes_or_new(ax)
    with style.house_style():
        ax.axhline(100 * result.plain, color=style.MUTED, linewidth=1.2, linestyle="--", label="no shaping (EBO)")
        # At the far right the curves may fall by tens of points: the picture is about the rest.
        usual = np.array(result.percentiles) <= 95
        shown = np.concatenate([curve[usual] for curve in result.auroc.values()] + [[result.plain]])
        low, high = 100 * float(shown.min()), 100 * float(shown.max())
        room = max(high - low, 0.2)
        bottom = low - 0.28 * room
        for index, (kind, curve) in enumerate(result.auroc.items()):
            look = style.mark(index)
            ax.plot(
                result.percentiles,
                100 * curve,
                color=look.colour,
                linestyle=look.line,
                marker=look.marker,
                label=NAMES[kind] + style.depth_words(100 * curve, bottom),
            )
        best = result.best()
        height = 100 * float(result.auroc["scaling"].max())
        ax.plot(
            best, height, "o", markersize=12, markerfacecolor="none", markeredgecolor=style.INK, markeredgewidth=1.2
        )
        ax.annotate(f"best: {best:g}", (best, height), (0, 9), textcoords="offset points", ha="center", fontsize=8)
        ax.set_ylim(bottom, min(high + 0.3 * room, 100))
    style.legend(ax, loc="best")
    return style.headline(ax, title, x="percentile p", y="AUROC, %")


def study(specimen: Specimen) -> Study:
    """Sweep near and far sets."""
    groups = specimen.groups
    figure, axes = style.new_figure(1, len(groups), size=(5.2 * len(groups), 3.5), squeeze=False)
    words, numbers = [], {}
    for ax, (group, members) in zip(axes[0], groups.items(), strict=True):
        found = sweep_of(specimen, members)
        plot_sweep(found, ax, title=f"{group.capitalize()} OOD")
        best = float(found.auroc["scaling"].max())
        words.append(
            f"{group}: scaling best at p = {found.best():g} with AUROC {100 * best:.1f}, plain energy {100 * found.plain:.1f}"
        )
        curves = {kind: curve.round(5).tolist() for kind, curve in found.auroc.items()}
        numbers[group] = {"percentiles": found.percentiles, "ebo": found.plain, "best": found.best()} | curves
    line = "; ".join(words)
    alt = f"AUROC against the percentile for scaling, pruning and both. {line}"
    return Study(line, numbers, {"percentiles": (figure, alt)})


def sweep_of(specimen: Specimen, members: Mapping[str, ActivationsSet]) -> Sweep:
    """Sweep some sets of a specimen."""
    return sweep(specimen.head, specimen.ids.acts, {part: found.acts for part, found in members.items()})

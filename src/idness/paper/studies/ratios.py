"""Shows the scale ratio r = Q/Q_p of ID against OOD images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idness.core.types import Activations
from idness.detectors.kernels import scale_ratio
from idness.metrics import auroc
from idness.paper.studies.percentiles import sweep_of
from idness.paper.studies.specimen import SIGNED, Specimen, Study, small_axes
from idness.report import style

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Ratios:
    """Holds the ratio of each image of a set at one percentile."""

    name: str
    values: Array
    percentile: float


def ratios(name: str, acts: Activations, percentile: float = 85.0) -> Ratios:
    """Compute r = Q/Q_p for each image."""
    return Ratios(name, scale_ratio(acts.features, percentile).numpy(), percentile)


def separation(inside: Ratios, outside: Ratios) -> float:
    """Compute the chance that an ID image has the larger ratio; the paper's argument wants it well above one half."""
    return auroc(inside.values, outside.values)


def plot_ratios(inside: Ratios, outside: Ratios, ax: Any = None, *, legend: bool = True) -> Any:
    """Draw histograms of the ratio, ID against one OOD set, and how well it separates them alone."""
    ax = style.axes_or_new(ax)
    style.two_histograms(ax, inside.values, outside.values, (inside.name, "OOD"))
    if legend:
        style.legend(ax, fontsize=7)
    title = f"{outside.name}: ID larger {100 * separation(inside, outside):.0f} %"
    return style.headline(ax, title, x=f"$Q/Q_p$ at p = {inside.percentile:g}")


def study(specimen: Specimen) -> Study:
    """Compare the ratio on every set at the best percentile of scaling within its search grid."""
    name = "Scale ratio"
    if specimen.signed:
        return Study(name, SIGNED)
    # Lower percentiles leave out zeros only, and every ratio is near 1.
    best = sweep_of(specimen, specimen.outside).best(lowest=65)
    inside = ratios("ID", specimen.inside.acts, best)
    outside = [ratios(part, found.acts, best) for part, found in specimen.outside.items()]
    chances = {part.name: separation(inside, part) for part in outside}
    figure, axes = small_axes(len(outside))
    for part, ax in zip(outside, axes, strict=True):
        plot_ratios(inside, part, ax, legend=part is outside[0])
    larger = [part for part, value in chances.items() if value > 0.5]
    line = (
        f"at p = {best:g}, r = Q/Q_p alone is larger on ID than on {len(larger)} of {len(chances)} sets"
        f" ({', '.join(f'{part} {100 * value:.0f} %' for part, value in chances.items())} of pairs)"
    )
    return Study(
        name, line, {"percentile": best, "id_larger": chances}, {"ratios": (figure, f"Histograms of Q/Q_p. {line}")}
    )

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
    """Keeps the ratio of each image of a set at one percentile."""

    name: str
    values: Array
    percentile: float


def ratios(name: str, acts: Activations, percentile: float = 85.0) -> Ratios:
    """Compute r = Q/Q_p for each image."""
    return Ratios(name, scale_ratio(acts.features, percentile).numpy(), percentile)


def separation(ids: Ratios, oods: Ratios) -> float:
    """Compute the chance that an ID image has the larger ratio; the paper's argument wants it well above one half."""
    return auroc(ids.values, oods.values)


def plot_ratios(ids: Ratios, oods: Ratios, ax: Any = None, *, legend: bool = True) -> Any:
    """Draw histograms of the ratio, ID against one OOD set, and how well it separates them alone."""
    ax = style.axes_or_new(ax)
    style.two_histograms(ax, ids.values, oods.values, (ids.name, "OOD"))
    if legend:
        style.legend(ax, fontsize=7)
    title = f"{oods.name}: ID larger {100 * separation(ids, oods):.0f} %"
    return style.headline(ax, title, x=f"$Q/Q_p$ at p = {ids.percentile:g}")


def study(specimen: Specimen) -> Study:
    """Compare the ratio on every set at the best percentile of scaling within its search grid."""
    name = "Scale ratio"
    if specimen.signed:
        return Study(name, SIGNED)
    # Lower percentiles leave out zeros only, and every ratio is near 1.
    best = sweep_of(specimen, specimen.oods).best(lowest=65)
    ids = ratios("ID", specimen.ids.acts, best)
    oods = [ratios(part, found.acts, best) for part, found in specimen.oods.items()]
    chances = {part.name: separation(ids, part) for part in oods}
    figure, axes = small_axes(len(oods))
    for part, ax in zip(oods, axes, strict=True):
        plot_ratios(ids, part, ax, legend=part is oods[0])
    larger = [part for part, value in chances.items() if value > 0.5]
    line = (
        f"at p = {best:g}, r = Q/Q_p alone is larger on ID than on {len(larger)} of {len(chances)} sets"
        f" ({', '.join(f'{part} {100 * value:.0f} %' for part, value in chances.items())} of pairs)"
    )
    return Study(
        name, line, {"percentile": best, "id_larger": chances}, {"ratios": (figure, f"Histograms of Q/Q_p. {line}")}
    )

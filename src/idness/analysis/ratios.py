"""Shows the scale ratio r = Q/Q_p of ID against OOD images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idness.kernels import scale_ratio
from idness.metrics import auroc
from idness.report import style
from idness.types import Activations

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


def plot_ratios(inside: Ratios, outside: Ratios, ax: Any = None) -> Any:
    """Draw histograms of the ratio, ID against one OOD set, and how well it separates them alone."""
    ax = style.axes_or_new(ax)
    style.two_histograms(ax, inside.values, outside.values, (inside.name, outside.name))
    style.legend(ax)
    title = f"ID larger: {100 * separation(inside, outside):.0f} %"
    return style.headline(ax, title, x=f"$Q/Q_p$ at p = {inside.percentile:g}")

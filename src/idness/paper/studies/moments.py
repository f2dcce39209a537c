"""Measures mean and variance of each image's pre-ReLU activations, ID against OOD, and their ratio mu/sigma."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from idness.core.errors import InputError
from idness.metrics import auroc
from idness.paper.studies.specimen import NO_RELU, Specimen, Study, small_axes
from idness.report import style

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Moments:
    """Keeps the moments of one set of images, one value per image.

    Args:
        name: the set.
        mean: mean over the D pre-ReLU activations.
        variance: their variance.
    """

    name: str
    mean: Array
    variance: Array

    @property
    def gamma(self) -> Array:
        """mu/sigma of each image; 0 where all its activations are equal."""
        sigma = np.sqrt(self.variance)
        return np.divide(self.mean, sigma, out=np.zeros_like(sigma), where=sigma > 0)

    @property
    def typical(self) -> float:
        """The mean of mu/sigma over the images."""
        return float(self.gamma.mean())


def moments(name: str, values: Tensor) -> Moments:
    """Compute mean and variance of each row of (N, D) pre-ReLU values."""
    if values.ndim != 2 or values.shape[1] < 2:
        raise InputError(f"moments: needs (N, D) values with D of at least 2, got shape {tuple(values.shape)}")
    array = values.double().numpy()
    return Moments(name, array.mean(axis=1), array.var(axis=1))


def gap(ids: Moments, oods: Moments) -> float:
    """Compute the chance that an ID image has a higher mu/sigma than an OOD image; the paper assumes more than one half."""
    return auroc(ids.gamma, oods.gamma)


def plot_moments(ids: Moments, oods: Sequence[Moments], ax: Any = None, *, most: int = 150) -> Any:
    """Draw variance against mean, one point per image, and each set's centre.

    Args:
        ids: ID.
        oods: OOD sets.
        ax: axes to draw on.
        most: points drawn per set, evenly picked.
    """
    ax = style.axes_or_new(ax, size=(5.6, 3.6))
    with style.house_style():
        for index, part in enumerate([ids, *oods]):
            look = _look(index)
            picked = np.linspace(0, len(part.mean) - 1, min(most, len(part.mean))).astype(int)
            ax.scatter(
                part.mean[picked],
                part.variance[picked],
                s=7,
                color=look.colour,
                marker=look.marker,
                alpha=0.28,
                linewidths=0,
            )
        for index, part in enumerate([ids, *oods]):
            look = _look(index)
            centre = np.median(part.mean), np.median(part.variance)
            ax.plot(
                *centre,
                look.marker,
                color=look.colour,
                markersize=9,
                markeredgecolor=style.PAPER,
                label=part.name,
                zorder=5,
            )
        everything = np.concatenate([part.variance for part in [ids, *oods]])
        ax.set_ylim(0, float(np.percentile(everything, 99.5)) * 1.05)
    style.legend(ax, outside=True)
    return style.headline(ax, "Mean and variance before the ReLU", x="mean of an image's activations", y="variance")


def _look(index: int) -> style.Mark:
    """Keep the first colour for ID alone, however many OOD sets there are."""
    others = len(style.PALETTE) - 1
    if index == 0:
        return style.mark(0)
    turn, place = divmod(index - 1, others)
    marker = style.MARKERS[(index + 2 * turn) % len(style.MARKERS)]
    return style.mark(index)._replace(colour=style.PALETTE[1 + place], marker=marker)


def plot_gamma(ids: Moments, oods: Moments, ax: Any = None, *, legend: bool = True) -> Any:
    """Draw histograms of mu/sigma, ID against one OOD set."""
    ax = style.axes_or_new(ax)
    style.two_histograms(ax, ids.gamma, oods.gamma, (ids.name, "OOD"))
    if legend:
        style.legend(ax, fontsize=7)
    title = f"{oods.name}: ID higher {100 * gap(ids, oods):.0f} %"
    return style.headline(ax, title, x="μ/σ before the ReLU")


def study(specimen: Specimen) -> Study:
    """Measure every set."""
    name = "Mean and variance"
    found = specimen.before_relu
    if not found:
        return Study(name, NO_RELU)
    ids, *oods = [moments(part.name, part.pre) for part in found if part.pre is not None]
    gaps = {part.name: gap(ids, part) for part in oods}
    higher = [part for part, value in gaps.items() if value > 0.5]
    line = (
        f"mu/sigma before the ReLU is {ids.typical:.2f} on ID; the paper's assumption that it is higher than on OOD holds for"
        f" {len(higher)} of {len(gaps)} sets ({', '.join(f'{part} {100 * value:.0f} %' for part, value in gaps.items())} of pairs)"
    )
    grid, axes = small_axes(len(oods))
    for part, ax in zip(oods, axes, strict=True):
        plot_gamma(ids, part, ax, legend=part is oods[0])
    numbers = {
        part.name: {
            "mean": float(part.mean.mean()),
            "variance": float(part.variance.mean()),
            "mu_sigma": part.typical,
            "id_higher": gaps.get(part.name),
        }
        for part in (ids, *oods)
    }
    scatter = style.figure_of(plot_moments(ids, oods))
    figures = {
        "moments": (scatter, f"Mean and variance of pre-ReLU activations. {line}"),
        "mu-sigma": (grid, f"Histograms of mu/sigma. {line}"),
    }
    return Study(name, line, {"sets": numbers}, figures)

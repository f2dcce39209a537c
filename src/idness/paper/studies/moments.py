"""Measures mean and variance of each image's pre-ReLU activations, ID against OOD, and their ratio mu/sigma."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from idness.core.errors import InputError
from idness.paper.studies.specimen import Specimen, Study, counted, plot_chances
from idness.report import style

Array = NDArray[np.float64]
MOST = 150
"""Points drawn per set."""


@dataclass(frozen=True)
class Moments:
    """Keeps mean and variance over the D pre-ReLU activations of each image of a set."""

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


def plot_moments(ids: Moments, oods: Sequence[Moments]) -> Any:
    """Draw variance against mean, one point per image, evenly picked where there are many, and each set's centre."""
    ax = style.axes_or_new(size=(5.6, 3.6))
    with style.house_style():
        for index, part in enumerate([ids, *oods]):
            look = _look(index)
            picked = np.linspace(0, len(part.mean) - 1, min(MOST, len(part.mean))).astype(int)
            ax.scatter(
                part.mean[picked],
                part.variance[picked],
                s=7,
                color=look.colour,
                marker=look.marker,
                alpha=0.28,
                linewidths=0,
            )
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
        highest = float(np.percentile(everything, 99.5)) * 1.05
        ax.set_ylim(0, highest)
    style.say_beyond(ax, everything, high=highest)
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


def study(specimen: Specimen) -> Study:
    """Measure every set."""
    ids, *oods = [
        moments(part.name, part.acts.pre_relu) for part in specimen.before_relu if part.acts.pre_relu is not None
    ]
    gammas = {part.name: part.gamma for part in oods}
    grid, chances = plot_chances(ids.gamma, gammas, "higher", x="μ/σ before the ReLU")
    line = (
        f"mu/sigma before the ReLU is {ids.typical:.2f} on ID; the paper's assumption that it is higher than on OOD holds for"
        f" {counted(chances)}"
    )
    numbers = {
        part.name: {
            "mean": float(part.mean.mean()),
            "variance": float(part.variance.mean()),
            "mu_sigma": part.typical,
            "id_higher": chances.get(part.name),
        }
        for part in (ids, *oods)
    }
    scatter = style.figure_of(plot_moments(ids, oods))
    figures = {
        "moments": (scatter, f"Mean and variance of pre-ReLU activations. {line}"),
        "mu-sigma": (grid, f"Histograms of mu/sigma. {line}"),
    }
    return Study(line, {"sets": numbers}, figures)

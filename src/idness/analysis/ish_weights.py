"""Shows how ISH weighs training images: the distribution of the scale factor, and who weighs most and least."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idness.errors import InputError
from idness.kernels import scale_ratio
from idness.report import style
from idness.types import Activations


@dataclass(frozen=True)
class Weights:
    """Holds each image's weight in the gradient of the final layer: exp(r), relative to the mean over the images."""

    values: NDArray[np.float64]
    percentile: float

    def extremes(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Give the rows that weigh most, heaviest first, and least, lightest first."""
        order = np.argsort(self.values, kind="stable")
        return order[::-1][:count].copy(), order[:count].copy()

    @property
    def spread(self) -> float:
        """How many times more the image at the 95th percentile weighs than that at the 5th."""
        low, high = np.percentile(self.values, [5, 95])
        return float(high / low)


def ish_weights(acts: Activations, percentile: float = 85.0) -> Weights:
    """Compute the weight that ISH gives each image, relative to the mean."""
    factors = scale_ratio(acts.features, percentile).double().exp().numpy()
    return Weights(factors / factors.mean(), percentile)


def plot_weights(weights: Weights, ax: Any = None) -> Any:
    """Draw the distribution of the weights."""
    ax = style.axes_or_new(ax)
    low, high = np.percentile(weights.values, [0.2, 99.8])
    edges = np.linspace(low, high if high > low else low + 1, 51)
    with style.house_style():
        ax.stairs(np.histogram(weights.values, edges)[0], edges, fill=True, color=style.ID_COLOUR, alpha=0.35)
        ax.stairs(np.histogram(weights.values, edges)[0], edges, color=style.ID_COLOUR)
        ax.axvline(1.0, color=style.MUTED, linestyle="--", linewidth=1)
        ax.set_yticks([])
        ax.grid(False)
    title = f"ISH weights: 95th percentile is {weights.spread:.2f}x the 5th"
    return style.headline(ax, title, x=f"exp(Q/Q_p) relative to its mean, p = {weights.percentile:g}")


def plot_extremes(
    weights: Weights, images: NDArray[np.uint8], labels: Sequence[str] | None = None, *, count: int = 10
) -> Any:
    """Draw the images that weigh most and least as thumbnails with their weights, and give the figure.

    Args:
        weights: what `ish_weights` gave for the same images.
        images: (N, H, W, 3) uint8.
        labels: a class name per image.
        count: how many at either end.
    """
    if len(images) != len(weights.values):
        raise InputError(f"plot_extremes: needs one image per weight ({len(weights.values)}), got {len(images)}")
    count = min(count, len(images))
    figure, axes = style.new_figure(2, count, size=(0.92 * count + 0.4, 2.9), squeeze=False)
    with style.house_style():
        for row, (rows, name) in enumerate(zip(weights.extremes(count), ("most", "least"), strict=True)):
            for ax, index in zip(axes[row], rows, strict=True):
                ax.imshow(images[index], interpolation="nearest")
                ax.set_xticks([])
                ax.set_yticks([])
                ax.grid(False)
                for side in ("left", "bottom"):
                    ax.spines[side].set_visible(False)
                ax.set_title(labels[index] if labels is not None else "", fontsize=7, fontweight="normal", loc="center")
                ax.set_xlabel(f"{weights.values[index]:.2f}", fontsize=8)
            axes[row][0].set_ylabel(f"weighs {name}", fontsize=8)
    return figure

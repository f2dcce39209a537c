"""Shows how ISH weighs training images: the distribution of the scale factor, and who weighs most and least."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from idness.core.errors import InputError
from idness.core.types import Activations
from idness.data import ActivationsSet
from idness.detectors.kernels import scale_ratio
from idness.paper.studies.specimen import Specimen, Study
from idness.report import style

PERCENTILE = 85.0
"""At which ISH trains in the paper."""
Reader = Callable[[NDArray[np.int64]], Sequence[NDArray[np.uint8]]]


@dataclass(frozen=True)
class Weights:
    """Keeps each image's weight in the gradient of the final layer: exp(r), relative to the mean over the images."""

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


def plot_weights(weights: Weights) -> Any:
    """Draw the distribution of the weights."""
    ax = style.axes_or_new()
    low, high = np.percentile(weights.values, [0.2, 99.8])
    edges = np.linspace(low, high if high > low else low + 1, 51)
    with style.house_style():
        ax.stairs(np.histogram(weights.values, edges)[0], edges, fill=True, color=style.ID_COLOUR, alpha=0.35)
        ax.stairs(np.histogram(weights.values, edges)[0], edges, color=style.ID_COLOUR)
        ax.axvline(1.0, color=style.MUTED, linestyle="--", linewidth=1)
        ax.set_yticks([])
        ax.grid(False)
    style.say_beyond(ax, weights.values, edges[0], edges[-1])
    title = f"ISH weights: 95th percentile is {weights.spread:.2f}x the 5th"
    return style.headline(ax, title, x=f"exp(Q/Q_p) relative to its mean, p = {weights.percentile:g}")


def plot_extremes(weights: Weights, read: Reader, labels: Sequence[str] = (), *, count: int = 10) -> Any:
    """Draw the images that weigh most and least, `count` of either, with weights and class names, and give the figure.

    `read` gives the pictures of some rows, uint8 (height, width, 3) each.
    """
    if labels and len(labels) != len(weights.values):
        raise InputError(f"plot_extremes: needs one label per weight ({len(weights.values)}), got {len(labels)}")
    count = min(count, len(weights.values))
    figure, axes = style.new_figure(2, count, size=(0.92 * count + 0.4, 2.9), squeeze=False)
    with style.house_style():
        for row, (rows, name) in enumerate(zip(weights.extremes(count), ("most", "least"), strict=True)):
            for ax, index, picture in zip(axes[row], rows, read(rows), strict=True):
                ax.imshow(picture, interpolation="nearest")
                ax.set(xticks=[], yticks=[])
                ax.grid(False)
                ax.spines[["left", "bottom"]].set_visible(False)
                ax.set_title(labels[index] if labels else "", fontsize=7, fontweight="normal", loc="center")
                ax.set_xlabel(f"{weights.values[index]:.2f}", fontsize=8)
            axes[row][0].set_ylabel(f"weighs {name}", fontsize=8)
    return figure


def study(specimen: Specimen) -> Study:
    """Weigh the training images, or the test images where there are none."""
    part = specimen.train or specimen.ids
    weights = ish_weights(part.acts, PERCENTILE)
    kind = "training" if specimen.train else "test"
    line = (
        f"over {len(part.acts)} {kind} images at p = {PERCENTILE:g}, the image at the 95th percentile"
        f" weighs {weights.spread:.2f} times that at the 5th"
    )
    figures = {"ish-weights": (style.figure_of(plot_weights(weights)), f"Distribution of ISH's weights. {line}")}
    count = min(10, len(part.acts))
    most, least = weights.extremes(count)
    labels = _class_names(specimen, part)
    if part.images is not None:
        figure = plot_extremes(weights, part.thumbnails, labels, count=count)
        figures["ish-images"] = (figure, "The images that weigh most and least in ISH")
    if labels:
        line += f"; most: {_common(labels, most)}, least: {_common(labels, least)}"
    sure = torch.softmax(part.acts.logits, dim=1).amax(dim=1)
    heavy, light = (float(sure[torch.from_numpy(rows)].mean()) for rows in weights.extremes(max(1, len(sure) // 10)))
    line += f"; mean largest probability {heavy:.2f} on the heaviest tenth, {light:.2f} on the lightest"
    numbers = {
        "percentile": PERCENTILE,
        "spread": weights.spread,
        "sure": [heavy, light],
        "most": most.tolist(),
        "least": least.tolist(),
    }
    return Study(line, numbers, figures)


def _class_names(specimen: Specimen, part: ActivationsSet) -> list[str]:
    if part.acts.labels is None:
        return []
    known = specimen.classes
    return [known[int(label)] if int(label) < len(known) else str(int(label)) for label in part.acts.labels]


def _common(labels: Sequence[str], rows: np.ndarray[Any, Any]) -> str:
    """Count the classes of some rows, the commonest first."""
    return ", ".join(f"{count} {label}" for label, count in Counter(labels[row] for row in rows).most_common(3))

"""Pre-ReLU activations of each image: whether they are Gaussian, as the paper assumes, and their mean and variance, ID against OOD.

The paper gives mean p-values of a chi-square test but neither bins nor degrees of freedom. Ours: mean and variance of each image are
estimated from its D values; the fitted Gaussian is cut into 10 bins of equal probability; the statistic is compared with chi-square at
10 - 1 - 2 = 7 degrees of freedom (two for the estimated parameters). A true Gaussian has a mean p-value near 0.5; a mean just above
0.05, which the paper takes as support, means that most images are rejected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import chi2, norm
from torch import Tensor

from idness.core.errors import InputError
from idness.paper.studies import Study, StudyData, count_larger, plot_chances
from idness.report import style

BINS = 10
DEGREES = BINS - 3
SAMPLE = 20_000
"""Values of a set that its shape is drawn from."""
LEVEL = 0.05
MOST = 150
"""Points drawn per set."""
Array = NDArray[np.float64]


class Gaussianity(NamedTuple):
    """How Gaussian the pre-ReLU values of one set are.

    `mean_p` is the mean p-value, which the paper prints, `accepted` the fraction of images that the test does not reject at 5 %, and
    `z` a sample of standardised values.
    """

    name: str
    mean_p: float
    accepted: float
    z: Array


def gaussianity(name: str, values: Tensor) -> Gaussianity:
    """Test the pre-ReLU values (N, D) of one set."""
    p = chi_square_p_values(values)
    z = standardised(values[: SAMPLE // values.shape[1] + 1])[0].ravel()[:SAMPLE]
    return Gaussianity(name, float(p.mean()), float((p > LEVEL).mean()), z)


def chi_square_p_values(values: Tensor) -> Array:
    """Test each row of (N, D) values against a Gaussian of its own mean and variance, and return the p-values."""
    if values.ndim != 2 or values.shape[1] < 5 * BINS:
        raise InputError(f"needs (N, D) with at least {5 * BINS} values per image, got shape {tuple(values.shape)}")
    z, constant = standardised(values)
    cells = np.clip((ndtr(z) * BINS).astype(np.int64), 0, BINS - 1)
    counts = np.stack([(cells == place).sum(axis=1) for place in range(BINS)], axis=1)
    expected = values.shape[1] / BINS
    statistic = ((counts - expected) ** 2).sum(axis=1) / expected
    p_values: Array = chi2.sf(statistic, DEGREES)
    p_values[constant] = 0.0
    return p_values


def standardised(values: Tensor) -> tuple[Array, NDArray[np.bool_]]:
    """Scale each row to mean 0 and variance 1; also return which rows are constant, which become 0."""
    array = values.double().numpy()
    centred = array - array.mean(axis=1, keepdims=True)
    spread = centred.std(axis=1, keepdims=True)
    constant = spread[:, 0] <= 1e-12 * (1.0 + np.abs(array).max(axis=1))
    return centred / np.where(constant[:, None], 1.0, spread), constant


def plot_p_values(results: Sequence[Gaussianity], ax: Any) -> Any:
    """Draw the mean p-value of each set; the first is ID."""
    with style.house_style():
        for row, result in enumerate(results):
            colour, hatch = (style.ID_COLOUR, "") if row == 0 else (style.OOD_COLOUR, "////")
            ax.barh(row, result.mean_p, color=colour, hatch=hatch, edgecolor=style.PAPER, height=0.62, linewidth=0)
            value = f"{result.mean_p:.3f}" if result.mean_p >= 0.0005 else "< 0.001"
            text = f" {value} · {100 * result.accepted:.0f} % pass"
            ax.text(max(result.mean_p, LEVEL), row, text, va="center", fontsize=8)
        ax.axvline(LEVEL, color=style.MUTED, linestyle="--", linewidth=1)
        ax.axvline(0.5, color=style.MUTED, linestyle=":", linewidth=1.2)
        top = len(results) - 0.4
        ax.text(0.5, top, "a true Gaussian ", ha="right", va="center", fontsize=7, color=style.MUTED)
        ax.text(LEVEL, top, " 0.05", ha="left", va="center", fontsize=7, color=style.MUTED)
        ax.set_yticks(range(len(results)), [result.name for result in results])
        ax.set_ylim(top + 0.3, -0.6)
        ax.set_xlim(0, 0.68)
        ax.grid(axis="y", visible=False)
    return style.headline(ax, "Are pre-ReLU activations Gaussian?", x=f"mean p-value, chi-square ({DEGREES} df)")


def plot_shape(results: Sequence[Gaussianity], ax: Any) -> Any:
    """Draw standardised pre-ReLU values of a few sets against the normal density."""
    edges = np.linspace(-4, 6, 61)
    middles = (edges[1:] + edges[:-1]) / 2
    with style.house_style():
        grid = np.linspace(-4, 6, 200)
        ax.fill_between(grid, norm.pdf(grid), color=style.MUTED, alpha=0.25, linewidth=0, label="Gaussian")
        for index, result in enumerate(results):
            look = style.mark(index)
            heights = np.histogram(result.z, edges)[0] / (len(result.z) * (edges[1] - edges[0]))
            ax.plot(middles, heights, color=look.colour, linestyle=look.line, label=result.name)
        ax.set_yticks([])
        ax.set_ylim(bottom=0)
        ax.grid(False)
    style.say_beyond(ax, np.concatenate([result.z for result in results]), edges[0], edges[-1])
    style.draw_legend(ax)
    return style.headline(ax, "Their shape", x="standardised value")


def gaussianity_study(data: StudyData) -> Study:
    """Test every set."""
    results = [gaussianity(name, values) for name, values in data.before_relu.items()]
    first = results[0]
    others = ", ".join(f"{result.name} {result.mean_p:.3f}" for result in results[1:])
    line = (
        f"chi-square, {BINS} bins of equal probability, {DEGREES} degrees of freedom: mean p {first.mean_p:.3f} on ID"
        f" ({100 * first.accepted:.0f} % of the images pass at 5 %); OOD: {others}"
    )
    figure, (left, right) = style.new_figure(1, 2, size=(10.4, 0.36 * len(results) + 1.9), width_ratios=(1.25, 1))
    plot_p_values(results, left)
    ordered = sorted(results[1:], key=lambda result: -result.mean_p)
    plot_shape([first, *(ordered[:: max(1, len(ordered) - 1)])], right)  # with the highest and the lowest mean
    numbers = {result.name: {"mean_p": result.mean_p, "accepted": result.accepted} for result in results}
    alt = f"Mean chi-square p-value of pre-ReLU activations by set, and their distribution. {line}"
    return Study(line, {"bins": BINS, "degrees": DEGREES, "sets": numbers}, {"gaussianity": (figure, alt)})


class SetMoments(NamedTuple):
    """Mean, variance and gamma = mu/sigma over the D pre-ReLU activations of each image of a set, and the mean gamma."""

    name: str
    mean: Array
    variance: Array
    gamma: Array
    typical: float


def moments(name: str, values: Tensor) -> SetMoments:
    """Return the moments of each row of (N, D) pre-ReLU values; gamma is 0 if all are equal."""
    array = values.double().numpy()
    mean, sigma = array.mean(axis=1), array.std(axis=1)
    gamma = np.divide(mean, sigma, out=np.zeros_like(sigma), where=sigma > 0)
    return SetMoments(name, mean, sigma**2, gamma, float(gamma.mean()))


def plot_moments(parts: Sequence[SetMoments]) -> Any:
    """Draw variance against mean, one point per image (evenly picked if there are many), and each set's centre; ID is first."""
    ax = style.axes_or_new(size=(5.6, 3.6))
    with style.house_style():
        for index, part in enumerate(parts):
            look = style.mark(index)
            picked = np.linspace(0, len(part.mean) - 1, min(MOST, len(part.mean))).astype(int)
            points = {"s": 7, "color": look.colour, "marker": look.marker, "alpha": 0.28, "linewidths": 0}
            ax.scatter(part.mean[picked], part.variance[picked], **points)
            centre = {"color": look.colour, "markersize": 9, "markeredgecolor": style.PAPER, "zorder": 5}
            ax.plot(np.median(part.mean), np.median(part.variance), look.marker, label=part.name, **centre)
        everything = np.concatenate([part.variance for part in parts])
        highest = float(np.percentile(everything, 99.5)) * 1.05
        ax.set_ylim(0, highest)
    style.say_beyond(ax, everything, high=highest)
    style.draw_legend(ax, outside=True)
    return style.headline(ax, "Mean and variance before the ReLU", x="mean of an image's activations", y="variance")


def moments_study(data: StudyData) -> Study:
    """Measure every set."""
    ids, *oods = parts = [moments(name, values) for name, values in data.before_relu.items()]
    grid, chances = plot_chances(ids.gamma, {part.name: part.gamma for part in oods}, "higher", x="μ/σ before the ReLU")
    line = (
        f"mu/sigma before the ReLU is {ids.typical:.2f} on ID; the paper's assumption that it is higher than on OOD holds for"
        f" {count_larger(chances)}"
    )
    numbers = {}
    for part in parts:
        means = {"mean": float(part.mean.mean()), "variance": float(part.variance.mean()), "mu_sigma": part.typical}
        numbers[part.name] = {**means, "id_higher": chances.get(part.name)}
    scatter = style.figure_of(plot_moments(parts)), f"Mean and variance of pre-ReLU activations. {line}"
    return Study(line, {"sets": numbers}, {"moments": scatter, "mu-sigma": (grid, f"Histograms of mu/sigma. {line}")})

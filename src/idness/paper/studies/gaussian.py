"""The paper's Gaussian model of pre-ReLU activations: a test of it, mean and variance on ID and OOD images, and Proposition 3.1.

Test. The paper gives mean p-values of a chi-square test but states neither bins nor degrees of freedom. Here, mean and variance of each
image are estimated from its D values, the fitted Gaussian is divided into 10 bins of equal probability, and the statistic is compared
with chi-square at 10 - 1 - 2 = 7 degrees of freedom (two for the estimated parameters). A true Gaussian has a mean p-value near 0.5; a
mean just above 0.05, which the paper takes as support, means that most images are rejected.

Proposition. Activations are max(0, x) with x ~ N(mu, sigma), gamma = mu/sigma, and p is a fraction in (0, 1). Q is the sum of all
activations, Q_p the sum of those above the p-quantile. Findings:

* C(p) is the inverse Mills ratio and increases strictly: 1.55 at .85, 2.06 at .95. The text's "decreases after .95" does not
  follow from the formula.
* Exactly, Q_p/Q = (1 - p)(gamma + C(p)) / (gamma Phi(gamma) + phi(gamma)) for p > Phi(-gamma), and 1 below. Its derivative
  with respect to gamma is negative wherever phi(gamma)/Phi(gamma) < C(p), that is, for p > Phi(-gamma). Therefore, a higher
  gamma gives a smaller Q_p/Q at *every* such p, and the useful range has a simple lower end and no upper one.
* The printed proof drops phi(gamma) and expands 1/(1 + C/gamma) to first order, which needs gamma much larger than C.
  Networks have gamma below 1, often below 0, where neither holds. Moreover, all three coefficients of its quadratic in C are
  positive when gamma_id > gamma_ood > 0, so that its larger root is never above 0: the printed condition "C large
  enough" excludes no p at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr, ndtr, ndtri
from scipy.stats import chi2, norm
from torch import Tensor

from idness.core.errors import InputError
from idness.paper.studies import Study, StudyData, count_larger, plot_chances
from idness.report import style

BINS = 10
DEGREES = BINS - 3
LEVEL = 0.05
Array = NDArray[np.float64]


def chi_square_p_values(values: Tensor) -> Array:
    """Return the p-value of each row of (N, D) values against a Gaussian with its mean and variance; 0 for constant rows."""
    if values.ndim != 2 or values.shape[1] < 5 * BINS:
        raise InputError(f"needs (N, D) with at least {5 * BINS} values per image, got shape {tuple(values.shape)}")
    array = values.double().numpy()
    centred = array - array.mean(axis=1, keepdims=True)
    spread = centred.std(axis=1, keepdims=True)
    constant = spread[:, 0] <= 1e-12 * (1.0 + np.abs(array).max(axis=1))
    z = centred / np.where(constant[:, None], 1.0, spread)
    cells = np.clip((ndtr(z) * BINS).astype(np.int64), 0, BINS - 1)
    counts = np.stack([(cells == place).sum(axis=1) for place in range(BINS)], axis=1)
    expected = values.shape[1] / BINS
    statistic = ((counts - expected) ** 2).sum(axis=1) / expected
    p_values: Array = chi2.sf(statistic, DEGREES)
    p_values[constant] = 0.0
    return p_values


def plot_p_values(p_values: Mapping[str, Array]) -> Any:
    """Draw the mean p-value of each set; the first set is ID."""
    ax = style.axes_or_new(size=(5.8, 0.36 * len(p_values) + 1.9))
    with style.house_style():
        for row, p in enumerate(p_values.values()):
            colour, hatch = (style.ID_COLOUR, "") if row == 0 else (style.OOD_COLOUR, "////")
            ax.barh(row, p.mean(), color=colour, hatch=hatch, edgecolor=style.PAPER, height=0.62, linewidth=0)
            value = f"{p.mean():.3f}" if p.mean() >= 0.0005 else "< 0.001"
            text = f" {value} · {100 * (p > LEVEL).mean():.0f} % pass"
            ax.text(max(p.mean(), LEVEL), row, text, va="center", fontsize=8)
        ax.axvline(LEVEL, color=style.MUTED, linestyle="--", linewidth=1)
        ax.axvline(0.5, color=style.MUTED, linestyle=":", linewidth=1.2)
        ax.set_yticks(range(len(p_values)), list(p_values))
        ax.set_ylim(len(p_values) - 0.4, -0.6)
        ax.set_xlim(0, 0.68)
        ax.grid(axis="y", visible=False)
    return style.headline(
        ax, "Are pre-ReLU activations Gaussian?", x="mean chi-square p-value (dotted: a true Gaussian)"
    )


def gaussianity_study(data: StudyData) -> Study:
    """Return the results of the test on every set."""
    p_values = {name: chi_square_p_values(values) for name, values in data.before_relu.items()}
    sets = {name: {"mean_p": float(p.mean()), "accepted": float((p > LEVEL).mean())} for name, p in p_values.items()}
    first, *others = sets
    line = (
        f"chi-square, {BINS} bins of equal probability, {DEGREES} degrees of freedom: mean p {sets[first]['mean_p']:.3f} on ID"
        f" ({100 * sets[first]['accepted']:.0f} % of the images pass at 5 %); OOD: "
    ) + ", ".join(f"{name} {sets[name]['mean_p']:.3f}" for name in others)
    figure = style.figure_of(plot_p_values(p_values)), f"Mean chi-square p-value of pre-ReLU activations by set. {line}"
    return Study(line, {"bins": BINS, "degrees": DEGREES, "sets": sets}, {"gaussianity": figure})


def moments(values: Tensor) -> tuple[Array, Array, Array]:
    """Return mean, variance and gamma = mu/sigma of each row of (N, D) pre-ReLU values; gamma is 0 if all are equal."""
    array = values.double().numpy()
    mean, variance = array.mean(axis=1), array.var(axis=1)
    return mean, variance, np.divide(mean, np.sqrt(variance), out=np.zeros_like(mean), where=variance > 0)


def moments_study(data: StudyData) -> Study:
    """Return the moments of every set."""
    sets = {name: moments(values) for name, values in data.before_relu.items()}
    gammas = {name: gamma for name, (_, _, gamma) in sets.items()}
    own = gammas.pop(data.ids.name)
    grid, chances = plot_chances(own, gammas, "higher", x="μ/σ before the ReLU")
    line = (
        f"mu/sigma before the ReLU is {own.mean():.2f} on ID; the paper's assumption that it is higher than on OOD holds for"
        f" {count_larger(chances)}"
    )
    numbers = {}
    for name, parts in sets.items():
        means = zip(("mean", "variance", "mu_sigma"), (float(part.mean()) for part in parts), strict=True)
        numbers[name] = {**dict(means), "id_higher": chances.get(name)}
    return Study(line, {"sets": numbers}, {"mu-sigma": (grid, f"Histograms of mu/sigma. {line}")})


def c_factor(p: ArrayLike) -> Array:
    """Return C(p) = phi(m) / (1 - Phi(m)) with m the p-quantile of the standard normal."""
    m = ndtri(np.asarray(p, float))
    result: Array = np.exp(norm.logpdf(m) - log_ndtr(-m))
    return result


def kept_share(p: ArrayLike, gamma: float, *, printed: bool = False) -> Array:
    """Return Q_p/Q of a rectified Gaussian; `printed` drops phi(gamma) from the mean, as in the paper, for gamma above 0."""
    fraction = np.asarray(p, float)
    total = gamma * ndtr(gamma) + (0 if printed else norm.pdf(gamma))
    kept: Array = (1 - fraction) * (gamma + c_factor(fraction)) / total
    # Below Phi(-gamma) the quantile is 0: only zeros are excluded.
    return kept if printed else np.where(fraction > ndtr(-gamma), kept, 1.0)


def exact_range(gamma_id: float, gamma_ood: float) -> tuple[float, float]:
    """Return the range of p for which Q_p/Q of ID is strictly below that of OOD, without approximation; (1, 1) if there is none."""
    return (float(ndtr(-gamma_id)), 1.0) if gamma_id > gamma_ood else (1.0, 1.0)


def plot_c(ax: Any) -> Any:
    """Draw C(p)."""
    p = np.linspace(0.01, 0.995, 400)
    with style.house_style():
        ax.plot(100 * p, c_factor(p), color=style.ID_COLOUR)
        for value in (0.65, 0.85, 0.95):
            height = float(c_factor(value))
            ax.plot(100 * value, height, "o", color=style.ID_COLOUR, markeredgecolor=style.PAPER, markersize=7)
            ax.text(100 * value - 3, height, f"{height:.2f} at {100 * value:.0f}", ha="right", fontsize=8)
        ax.set_ylim(0, 2.9)
        ax.set_xlim(0, 100)
    return style.headline(ax, "C(p), as the formula gives it", x="percentile p", y="C(p)")


def plot_shares(ax: Any) -> Any:
    """Draw Q_p/Q and, as thin lines, the paper's approximation."""
    p = np.linspace(0.02, 0.98, 200)
    gammas = (-1.0, 0.0, 1.0, 2.0)
    with style.house_style():
        for index, gamma in enumerate(gammas):
            look = style.mark(index)
            ax.plot(100 * p, kept_share(p, gamma), color=look.colour, linestyle=look.line, label=f"μ/σ = {gamma:g}")
            if gamma > 0:
                ax.plot(100 * p, kept_share(p, gamma, printed=True), color=look.colour, linewidth=0.8, linestyle=":")
        # The approximation leaves the axes where it exceeds 1.
        ax.plot([], [], ":", color=style.MUTED, linewidth=0.8, label="as approximated")
        ax.set_ylim(0, 1.4)
    style.draw_legend(ax, outside=True)
    return style.headline(ax, "Share of the sum that is kept", x="percentile p", y="$Q_p/Q$")


def proposition_study(data: StudyData) -> Study:
    """Return the result of applying the proposition to the mean mu/sigma of every set."""
    figure, (left, right) = style.new_figure(1, 2, size=(10.4, 3.5))
    plot_c(left)
    plot_shares(right)
    line = "C(p) increases strictly (1.55 at 85, 2.06 at 95); Q_p/Q is smaller for higher mu/sigma at every p above the share of zeros"
    numbers: dict[str, Any] = {"c": {str(p): float(c_factor(p / 100)) for p in (65, 85, 90, 95)}}
    if gammas := {name: float(moments(values)[2].mean()) for name, values in data.before_relu.items()}:
        own = gammas.pop(data.ids.name)
        reach = {part: exact_range(own, gamma) for part, gamma in gammas.items()}
        holds = ", ".join(part for part, (low, high) in reach.items() if low < high) or "none"
        line += f"; here that is p above {100 * float(ndtr(-own)):.0f}, and then ID ratios should be larger than those of {holds}"
        every, none = "p from 0 to 100", "none, as it needs gamma of ID > gamma of OOD > 0"
        printed = ", ".join(f"{part} {every if own > gamma > 0 else none}" for part, gamma in gammas.items())
        line += f"; by the proof's own condition: {printed}"
        numbers["range"] = {part: list(ends) for part, ends in reach.items()}
    alt = f"C(p), and the share of the sum that is kept, exact and as the paper approximates it. {line}"
    return Study(line, numbers, {"proposition": (figure, alt)})

"""The paper's Proposition 3.1 on rectified Gaussians: as printed, exactly, and by simulation.

Activations are max(0, x) with x ~ N(mu, sigma), gamma = mu/sigma, and p is a fraction in (0, 1). Q is the sum of all
activations, Q_p the sum of those above the p-quantile. What is found:

* C(p) is the inverse Mills ratio and rises strictly: 1.55 at .85, 2.06 at .95. The text's "decreases after .95" does not
  follow from the formula.
* Exactly, Q_p/Q = (1 - p)(gamma + C(p)) / (gamma Phi(gamma) + phi(gamma)) for p > Phi(-gamma), and 1 below. Its derivative
  with respect to gamma is negative wherever phi(gamma)/Phi(gamma) < C(p), which is p > Phi(-gamma): so a higher gamma
  gives a smaller Q_p/Q at *every* such p, and the useful range has a simple lower end and no upper one.
* The printed proof drops phi(gamma) and expands 1/(1 + C/gamma) to first order, which needs gamma much larger than C.
  Networks have gamma below 1, often below 0, where neither holds. And all three coefficients of its quadratic in C are
  positive when gamma_id > gamma_ood > 0, so that its larger root is never above 0: the printed condition "C large
  enough" excludes no p at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr, ndtri
from scipy.stats import norm

from idness.core.checks import check_fraction
from idness.core.errors import OptionError
from idness.detectors.kernels import scale_ratio
from idness.paper.studies.moments import moments
from idness.paper.studies.specimen import Specimen, Study
from idness.report import style

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Range:
    """Bounds the fractions p for which Q_p/Q is smaller for ID than for OOD; `low` >= `high` means none."""

    low: float
    high: float

    @property
    def empty(self) -> bool:
        """Whether no p is in it."""
        return self.low >= self.high

    def __str__(self) -> str:
        return "no p" if self.empty else f"p from {100 * self.low:.0f} to {100 * self.high:.0f}"


def c_factor(p: ArrayLike) -> Array:
    """Compute C(p) = phi(m) / (1 - Phi(m)) with m the p-quantile of the standard normal."""
    m = ndtri(np.asarray(p, float))
    result: Array = np.exp(norm.logpdf(m) - log_ndtr(-m))
    return result


def kept_share(p: ArrayLike, gamma: ArrayLike) -> Array:
    """Compute Q_p/Q of a rectified Gaussian exactly."""
    fraction, ratio = np.broadcast_arrays(np.asarray(p, float), np.asarray(gamma, float))
    total = ratio * ndtr(ratio) + norm.pdf(ratio)
    kept = (1 - fraction) * (ratio + c_factor(fraction))
    # Below Phi(-gamma) the quantile is one of the zeros: nothing but zeros is left out.
    return np.where(fraction > ndtr(-ratio), kept / total, 1.0)


def kept_share_printed(p: ArrayLike, gamma: ArrayLike) -> Array:
    """Compute Q_p/Q with the paper's approximation, which drops phi(gamma) from the mean; for gamma above 0."""
    fraction, ratio = np.broadcast_arrays(np.asarray(p, float), np.asarray(gamma, float))
    result: Array = (1 - fraction) * (ratio + c_factor(fraction)) / (ratio * ndtr(ratio))
    return result


def discriminant(gamma_id: float, gamma_ood: float) -> float:
    """Compute the Delta of the paper's proof."""
    inverse_id, inverse_ood = 1 / gamma_id, 1 / gamma_ood
    return float((inverse_id + inverse_ood) ** 2 - 4 * inverse_id * inverse_ood * ndtr(gamma_id) / ndtr(gamma_ood))


def printed_range(gamma_id: float, gamma_ood: float) -> Range:
    """Compute the range of p from the proof's discriminant; the proof needs gamma_id > gamma_ood > 0.

    It comes out as every p, whatever the gammas: see above.
    """
    if not gamma_id > gamma_ood > 0:
        raise OptionError(
            f"printed_range: the proof needs gamma of ID above gamma of OOD above 0, got {gamma_id:.3g} and {gamma_ood:.3g};"
            " exact_range has no such limit"
        )
    delta = discriminant(gamma_id, gamma_ood)
    if delta <= 0:
        return Range(0.0, 1.0)
    inverse_id, inverse_ood = 1 / gamma_id, 1 / gamma_ood
    smallest = (inverse_id - inverse_ood + np.sqrt(delta)) / (2 * inverse_id * inverse_ood)
    return Range(fraction_of_c(smallest), 1.0) if smallest > 0 else Range(0.0, 1.0)


def printed_ranges(own: float, gammas: Mapping[str, float]) -> str:
    """Write the range that the proof gives for the gamma of each OOD set, or that it says nothing."""
    said = []
    for name, gamma in gammas.items():
        proved = own > gamma > 0
        said.append(
            f"{name} {printed_range(own, gamma) if proved else 'none, as it needs gamma of ID > gamma of OOD > 0'}"
        )
    return ", ".join(said)


def exact_range(gamma_id: float, gamma_ood: float) -> Range:
    """Compute the range of p for which Q_p/Q of ID is strictly below that of OOD, without approximation."""
    if gamma_id <= gamma_ood:
        return Range(1.0, 1.0)
    return Range(float(ndtr(-gamma_id)), 1.0)


def fraction_of_c(c: float) -> float:
    """Find the p at which C(p) has a value; C rises from 0 to infinity, so there is one."""
    if c <= 0:
        return 0.0
    found = brentq(lambda m: float(np.exp(norm.logpdf(m) - log_ndtr(-m))) - c, -38.0, max(c, 1.0) + 1.0, xtol=1e-12)
    return float(ndtr(found))


def simulated_share(p: float, gamma: float, *, images: int) -> float:
    """Simulate Q_p/Q on rectified Gaussians with the very function that SCALE uses."""
    check_fraction("simulated_share", "p", p)
    rows = (torch.randn(images, 2048, generator=torch.Generator().manual_seed(0)) + gamma).clamp(min=0)
    return float((1 / scale_ratio(rows, 100 * p)).mean())


def plot_c(ax: Any = None) -> Any:
    """Draw C(p) as the formula gives it."""
    ax = style.axes_or_new(ax)
    p = np.linspace(0.01, 0.995, 400)
    with style.house_style():
        ax.plot(100 * p, c_factor(p), color=style.ID_COLOUR)
        for value in (0.65, 0.85, 0.95):
            height = float(c_factor(value))
            ax.plot(100 * value, height, "o", color=style.ID_COLOUR, markeredgecolor=style.PAPER, markersize=7)
            ax.annotate(
                f"{height:.2f} at {100 * value:.0f}",
                (100 * value, height),
                (-8, 2),
                textcoords="offset points",
                ha="right",
                fontsize=8,
            )
        note = "the text says C falls after 95;\nthe formula rises strictly"
        ax.text(3, 2.6, note, fontsize=8, color=style.MUTED, va="top")
        ax.set_ylim(0, 2.9)
        ax.set_xlim(0, 100)
    return style.headline(ax, "C(p), as the formula gives it", x="percentile p", y="C(p)")


def plot_shares(ax: Any = None, *, images: int = 60) -> Any:
    """Draw Q_p/Q: exact as lines, simulated as markers, the paper's approximation as thin lines."""
    ax = style.axes_or_new(ax, size=(5.8, 3.6))
    p = np.linspace(0.02, 0.98, 200)
    spots = np.linspace(0.1, 0.95, 9)
    gammas = (-1.0, 0.0, 1.0, 2.0)
    printed = max(float(np.max(kept_share_printed(p, gamma))) for gamma in gammas if gamma > 0)
    with style.house_style():
        for index, gamma in enumerate(gammas):
            look = style.mark(index)
            ax.plot(100 * p, kept_share(p, gamma), color=look.colour, linestyle=look.line, label=f"μ/σ = {gamma:g}")
            drawn = [simulated_share(float(s), gamma, images=images) for s in spots]
            ax.plot(100 * spots, drawn, look.marker, color=look.colour, markeredgecolor=style.PAPER, markersize=6)
            if gamma > 0:
                ax.plot(100 * p, kept_share_printed(p, gamma), color=look.colour, linewidth=0.8, linestyle=":")
        # The approximation leaves the picture where it says that more than all is kept.
        ax.plot([], [], ":", color=style.MUTED, linewidth=0.8, label=f"as approximated,\nup to {printed:.1f}")
        ax.plot([], [], "o", color=style.MUTED, label="simulated")
        ax.set_ylim(0, 1.4)
    style.legend(ax, outside=True)
    return style.headline(ax, "Share of the sum that is kept", x="percentile p", y="$Q_p/Q$")


def study(specimen: Specimen) -> Study:
    """Apply the proposition to the mean mu/sigma of every set."""
    figure, (left, right) = style.new_figure(1, 2, size=(10.4, 3.5))
    plot_c(left)
    plot_shares(right)
    line = "C(p) rises strictly (1.55 at 85, 2.06 at 95); Q_p/Q is smaller for the higher mu/sigma at every p above the share of zeros"
    numbers: dict[str, Any] = {"c": {str(p): float(c_factor(p / 100)) for p in (65, 85, 90, 95)}}
    found = specimen.before_relu
    if found:
        gammas = {
            part.name: moments(part.name, part.acts.pre_relu).typical
            for part in found
            if part.acts.pre_relu is not None
        }
        own = gammas.pop(specimen.ids.name)
        reach = {part: exact_range(own, gamma) for part, gamma in gammas.items()}
        holds = [part for part, value in reach.items() if not value.empty]
        start = 100 * exact_range(own, -1e9).low
        listed = ", ".join(holds) or "none"
        line += f"; here that is p above {start:.0f}, and then ID ratios should be larger than those of {listed}"
        line += f"; by the proof's own condition: {printed_ranges(own, gammas)}"
        numbers["range"] = {part: [value.low, value.high] for part, value in reach.items()}
    alt = f"C(p), and the share of the sum that is kept, exact, simulated and as the paper approximates it. {line}"
    return Study(line, numbers, {"proposition": (figure, alt)})

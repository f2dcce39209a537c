"""The paper's Proposition 3.1 on rectified Gaussians: as printed, exactly, and by simulation.

Activations are max(0, x) with x ~ N(mu, sigma), gamma = mu/sigma, and p is a fraction in (0, 1). Q is the sum of all
activations, Q_p the sum of those above the p-quantile. Findings:

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

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr, ndtr, ndtri
from scipy.stats import norm

from idness.detectors.kernels import scale_ratio
from idness.paper.studies import Study, StudyData
from idness.paper.studies.gaussian import moments
from idness.report import style

Array = NDArray[np.float64]


def c_factor(p: ArrayLike) -> Array:
    """Return C(p) = phi(m) / (1 - Phi(m)) with m the p-quantile of the standard normal."""
    m = ndtri(np.asarray(p, float))
    result: Array = np.exp(norm.logpdf(m) - log_ndtr(-m))
    return result


def kept_share(p: ArrayLike, gamma: float, *, printed: bool = False) -> Array:
    """Return Q_p/Q of a rectified Gaussian; `printed` drops phi(gamma) from the mean, as the paper does, for gamma above 0."""
    fraction = np.asarray(p, float)
    total = gamma * ndtr(gamma) + (0 if printed else norm.pdf(gamma))
    kept: Array = (1 - fraction) * (gamma + c_factor(fraction)) / total
    # Below Phi(-gamma) the quantile is 0: only zeros are excluded.
    return kept if printed else np.where(fraction > ndtr(-gamma), kept, 1.0)


def exact_range(gamma_id: float, gamma_ood: float) -> tuple[float, float]:
    """Return the range of p for which Q_p/Q of ID is strictly below that of OOD, without approximation; (1, 1) if there is none."""
    return (float(ndtr(-gamma_id)), 1.0) if gamma_id > gamma_ood else (1.0, 1.0)


def simulated_share(p: float, gamma: float, *, images: int) -> float:
    """Simulate Q_p/Q on rectified Gaussians with the function that SCALE uses."""
    rows = (torch.randn(images, 2048, generator=torch.Generator().manual_seed(0)) + gamma).clamp(min=0)
    return float((1 / scale_ratio(rows, 100 * p)).mean())


def plot_c(ax: Any) -> Any:
    """Draw C(p)."""
    p = np.linspace(0.01, 0.995, 400)
    with style.house_style():
        ax.plot(100 * p, c_factor(p), color=style.ID_COLOUR)
        for value in (0.65, 0.85, 0.95):
            height = float(c_factor(value))
            ax.plot(100 * value, height, "o", color=style.ID_COLOUR, markeredgecolor=style.PAPER, markersize=7)
            place = {"xytext": (-8, 2), "textcoords": "offset points", "ha": "right", "fontsize": 8}
            ax.annotate(f"{height:.2f} at {100 * value:.0f}", (100 * value, height), **place)
        note = "the text says C falls after 95;\nthe formula rises strictly"
        ax.text(3, 2.6, note, fontsize=8, color=style.MUTED, va="top")
        ax.set_ylim(0, 2.9)
        ax.set_xlim(0, 100)
    return style.headline(ax, "C(p), as the formula gives it", x="percentile p", y="C(p)")


def plot_shares(ax: Any) -> Any:
    """Draw Q_p/Q: exact as lines, simulated as markers, the paper's approximation as thin lines."""
    p = np.linspace(0.02, 0.98, 200)
    spots = np.linspace(0.1, 0.95, 9)
    gammas = (-1.0, 0.0, 1.0, 2.0)
    highest = max(float(kept_share(p, gamma, printed=True).max()) for gamma in gammas if gamma > 0)
    with style.house_style():
        for index, gamma in enumerate(gammas):
            look = style.mark(index)
            ax.plot(100 * p, kept_share(p, gamma), color=look.colour, linestyle=look.line, label=f"μ/σ = {gamma:g}")
            drawn = [simulated_share(float(s), gamma, images=60) for s in spots]
            ax.plot(100 * spots, drawn, look.marker, color=look.colour, markeredgecolor=style.PAPER, markersize=6)
            if gamma > 0:
                ax.plot(100 * p, kept_share(p, gamma, printed=True), color=look.colour, linewidth=0.8, linestyle=":")
        # The approximation leaves the axes where it exceeds 1.
        ax.plot([], [], ":", color=style.MUTED, linewidth=0.8, label=f"as approximated,\nup to {highest:.1f}")
        ax.plot([], [], "o", color=style.MUTED, label="simulated")
        ax.set_ylim(0, 1.4)
    style.draw_legend(ax, outside=True)
    return style.headline(ax, "Share of the sum that is kept", x="percentile p", y="$Q_p/Q$")


def proposition_study(data: StudyData) -> Study:
    """Apply the proposition to the mean mu/sigma of every set."""
    figure, (left, right) = style.new_figure(1, 2, size=(10.4, 3.5))
    plot_c(left)
    plot_shares(right)
    line = "C(p) rises strictly (1.55 at 85, 2.06 at 95); Q_p/Q is smaller for the higher mu/sigma at every p above the share of zeros"
    numbers: dict[str, Any] = {"c": {str(p): float(c_factor(p / 100)) for p in (65, 85, 90, 95)}}
    if gammas := {name: moments(name, values).typical for name, values in data.before_relu.items()}:
        own = gammas.pop(data.ids.name)
        reach = {part: exact_range(own, gamma) for part, gamma in gammas.items()}
        holds = ", ".join(part for part, (low, high) in reach.items() if low < high) or "none"
        line += f"; here that is p above {100 * float(ndtr(-own)):.0f}, and then ID ratios should be larger than those of {holds}"
        every, none = "p from 0 to 100", "none, as it needs gamma of ID > gamma of OOD > 0"
        printed = ", ".join(f"{part} {every if own > gamma > 0 else none}" for part, gamma in gammas.items())
        line += f"; by the proof's own condition: {printed}"
        numbers["range"] = {part: list(ends) for part, ends in reach.items()}
    alt = f"C(p), and the share of the sum that is kept, exact, simulated and as the paper approximates it. {line}"
    return Study(line, numbers, {"proposition": (figure, alt)})

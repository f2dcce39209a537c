"""Scaling: AUROC by percentile, the trade-off with ID accuracy, the ratio r = Q/Q_p, and the weights that ISH derives from it.

SCALE multiplies features by exp(r), so the logarithm of its energy is about r plus that of the plain energy: r helps if it separates
images of equal energy, whether or not it is larger on ID images overall.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from idness.core.errors import InputError
from idness.core.progress import report_warnings
from idness.core.types import Activations, Head, is_signed
from idness.detectors.detector import Detector, Enhancer, fit_many, score_many
from idness.detectors.kernels import scale_ratio
from idness.detectors.registry import build
from idness.metrics import accuracy, auroc
from idness.paper.studies import Study, StudyData, count_larger, panels, plot_chances
from idness.report import figures, style
from idness.selection.search import choose, wanted_rows

PERCENTILES = (10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 65.0, 70.0, 75.0, 80.0, 85.0, 90.0, 93.0, 95.0, 97.0, 99.0)
KINDS = {"scaling": ("scale", {}), "both": ("ash", {"variant": "s"}), "pruning": ("ash", {"variant": "p"})}
NAMES = {"scaling": "scaling (SCALE)", "both": "both (ASH-S)", "pruning": "pruning (ASH-P)"}
BINS = 20
"""Number of bins of equal size that energies are divided into."""
ISH_PERCENTILE = 85.0
"""The percentile at which ISH trains in the paper."""
Array = NDArray[np.float64]
Indices = NDArray[np.int64]


def sweep(
    head: Head, ids: Activations, oods: Mapping[str, Activations], percentiles: Sequence[float] = PERCENTILES
) -> tuple[dict[str, Array], float]:
    """Return the mean AUROC over the OOD sets by percentile for each kind of edit, and that of the plain energy."""
    detectors: list[Detector] = [build("ebo")]
    for name, fixed in KINDS.values():
        detectors += [build(name, percentile=float(p), **fixed) for p in percentiles]
    fit_many(detectors, head)
    good = score_many(detectors, ids)
    totals = np.zeros(len(detectors))
    for acts in oods.values():
        totals += [auroc(a, b) for a, b in zip(good, score_many(detectors, acts), strict=True)]
    means = totals / len(oods)
    return dict(zip(KINDS, means[1:].reshape(len(KINDS), -1), strict=True)), float(means[0])


def percentile_study(data: StudyData) -> Study:
    """Return the AUROC by percentile on near and far sets."""

    def draw(ax: Any, title: str, oods: Mapping[str, Activations]) -> tuple[str, dict[str, Any]]:
        found, plain = sweep(data.head, data.ids.acts, oods)
        best, highest = PERCENTILES[int(found["scaling"].argmax())], 100 * found["scaling"].max()
        with style.house_style():
            for index, (kind, curve) in enumerate(found.items()):
                look = style.mark(index)
                ax.plot(PERCENTILES, 100 * curve, color=look.colour, linestyle=look.line, label=NAMES[kind])
            ax.axhline(100 * plain, color=style.MUTED, linestyle=style.LINES[2], linewidth=1.2, label="neither (EBO)")
        style.headline(ax, title, x="percentile p", y="AUROC, %", at_top=True)
        style.draw_legend(ax, loc="lower left")
        numbers = {"percentiles": PERCENTILES, "ebo": plain, "best": best}
        numbers |= {kind: curve.round(5).tolist() for kind, curve in found.items()}
        return f"scaling best at p = {best:g} with AUROC {highest:.1f}, plain energy {100 * plain:.1f}", numbers

    return _by_group(data, "percentiles", "AUROC against the percentile for scaling, pruning and both", 3.5, draw)


def _by_group(data: StudyData, name: str, about: str, height: float, draw: Callable[..., tuple[str, Any]]) -> Study:
    """Return a study whose figure has one panel for near and one for far sets; `draw` returns a line and numbers for each."""
    figure, axes = style.new_figure(1, len(data.groups), size=(5.2 * len(data.groups), height), squeeze=False)
    lines, numbers = [], {}
    for ax, (group, oods) in zip(axes[0], data.groups.items(), strict=True):
        line, numbers[group] = draw(ax, f"{group.capitalize()} OOD", oods)
        lines.append(f"{group}: {line}")
    return Study("; ".join(lines), numbers, {name: (figure, f"{about}. {'; '.join(lines)}")})


def measure_tradeoff(
    detectors: Mapping[str, Detector], ids: Activations, oods: Mapping[str, Activations]
) -> dict[str, tuple[float, float]]:
    """Return, for every fitted detector, the ID accuracy of the network that it edits, and the mean AUROC over OOD sets."""
    if ids.labels is None:
        raise InputError("tradeoff: accuracy needs labels, but ID activations have none; pass labelled images")
    points = {}
    for name, detector in detectors.items():
        # Only methods that edit the network have their own logits.
        logits = detector.shaped_logits(ids) if isinstance(detector, Enhancer) else ids.logits
        good = detector.score(ids)
        mean = float(np.mean([auroc(good, detector.score(acts)) for acts in oods.values()]))
        points[name] = accuracy(logits, ids.labels), mean
    return points


def tradeoff_study(data: StudyData) -> Study:
    """Return accuracy and AUROC of every method, with options chosen on validation data if available."""
    train, val = (None if part is None else part.acts for part in (data.train, data.val))
    signed = is_signed(data.ids.acts)
    wanted = {name: row for name, row in wanted_rows().items() if not (signed and row.detector.assumes_nonnegative)}
    with report_warnings(lambda _: None):  # the results show which methods do not suit the network
        choices, failed = choose(wanted, data.head, train, val, data.ood_val)
    detectors = {row: choice.detector for row, choice in choices.items()}

    def draw(ax: Any, title: str, oods: Mapping[str, Activations]) -> tuple[str, dict[str, Any]]:
        points = measure_tradeoff(detectors, data.ids.acts, oods)
        order = sorted(points, key=lambda row: -points[row][1])
        marks = {row: style.mark(index) for index, row in enumerate(order[: figures.HIGHLIGHTED])}
        figures.draw_tradeoff(points, marks, points["ebo"][0], title, ax)  # the energy does not edit the network
        right, mean = points[order[0]]
        line = f"{order[0]} leads with AUROC {100 * mean:.1f} at ID accuracy {100 * right:.1f}"
        return line, {row: {"accuracy": right, "auroc": mean} for row, (right, mean) in points.items()}

    found = _by_group(data, "tradeoff", "ID accuracy against OOD detection of every method", 3.8, draw)
    return replace(found, numbers={"left_out": failed} | found.numbers)


def ratios(data: StudyData) -> Study:
    """Return a comparison of the ratio on every set at the best percentile of SCALE's search grid, overall and at equal energy.

    The paper argues that the ratio is larger on ID images.
    """
    # Lower percentiles exclude only zeros, so that every ratio is near 1.
    high = [p for p in PERCENTILES if p >= 65]
    best = high[int(sweep(data.head, data.ids.acts, data.oods, high)[0]["scaling"].argmax())]
    parts = {"ID": data.ids.acts, **data.oods}
    ratio = {name: _array(scale_ratio(acts.features, best)) for name, acts in parts.items()}
    ebo, scale = build("ebo").fit(data.head), build("scale", percentile=best).fit(data.head)
    energy, scaled = ({name: _array(one.score(acts)) for name, acts in parts.items()} for one in (ebo, scale))
    ids, oods = ratio["ID"], {name: ratio[name] for name in data.oods}
    figure, chances = plot_chances(ids, oods, "larger", x=f"$Q/Q_p$ at p = {best:g}")
    equal = {name: larger_at_equal(energy["ID"], energy[name], ids, oods[name]) for name in oods}
    gains = {name: auroc(scaled["ID"], scaled[name]) - auroc(energy["ID"], energy[name]) for name in oods}
    verdict = _verdict(chances, equal, gains)
    numbers = {
        "percentile": best,
        "id_larger": chances,
        "id_larger_at_equal_energy": equal,
        "scale_minus_ebo": gains,
        "pruning_decrease": {name: float((1 - 1 / r).mean()) for name, r in ratio.items()},
        "scaling_increase": {name: float((r - 1).mean()) for name, r in ratio.items()},
    }
    line = f"at p = {best:g}, r = Q/Q_p alone is larger on ID than on {count_larger(chances)}; {verdict}; {_shifts(numbers)}"
    drawn = {"ratios": (figure, f"Histograms of Q/Q_p. {line}")}
    drawn["equal-energy"] = (plot_at_equal(energy, ratio, equal), f"Mean Q/Q_p of images by their energy. {verdict}")
    return Study(line, numbers, drawn)


def larger_at_equal(id_energy: Array, ood_energy: Array, id_ratio: Array, ood_ratio: Array) -> float:
    """Return the probability that an ID image has a larger ratio than an OOD image whose energy is in the same bin."""
    own, other = _bins(id_energy, ood_energy)
    total, pairs = 0.0, 0
    for part in range(BINS):
        ours, theirs = id_ratio[own == part], ood_ratio[other == part]
        count = len(ours) * len(theirs)
        if count:
            total, pairs = total + count * auroc(ours, theirs), pairs + count
    return total / pairs if pairs else 0.5


def plot_at_equal(energy: Mapping[str, Array], ratio: Mapping[str, Array], equal: Mapping[str, float]) -> Any:
    """Draw the mean ratio of ID and OOD images against their energy, one panel per OOD set."""
    figure, axes = panels(list(equal))
    for place, (ax, (name, chance)) in enumerate(zip(axes, equal.items(), strict=True)):
        own, other = _bins(energy["ID"], energy[name])
        for part, bins, colour, shown in (
            ("ID", own, style.ID_COLOUR, "ID"),
            (name, other, style.OOD_COLOUR, "OOD"),
        ):
            present = [b for b in range(BINS) if (bins == b).sum() > 1]
            means = [(energy[part][bins == b].mean(), ratio[part][bins == b].mean()) for b in present]
            ax.plot(*np.array(means).reshape(-1, 2).T, marker="o", markersize=3, color=colour, label=shown)
        if place == 0:
            style.draw_legend(ax, fontsize=7)
        style.headline(ax, f"{name}: at equal energy {100 * chance:.0f} %", x="energy", y="mean $Q/Q_p$")
    return figure


def _verdict(chances: Mapping[str, float], equal: Mapping[str, float], gains: Mapping[str, float]) -> str:
    """Return a text on the cause of the gain, and on where the paper's explanation is refuted."""
    listed = ", ".join(f"{name} {100 * chance:.0f} %" for name, chance in equal.items())
    against = [name for name, chance in chances.items() if chance <= 0.5]
    won = [name for name in against if gains[name] > 0 and equal[name] > 0.5]
    found = f"is refuted on {', '.join(against)}" if against else "holds here"
    still = f"; SCALE still gains on {', '.join(won)}, since r is larger on ID at equal energy" if won else ""
    at_equal = f"among images of equal energy it is larger on ID in {listed} of pairs"
    return f"{at_equal}; the paper's explanation, a larger r on ID images, {found}{still}"


def _shifts(numbers: Mapping[str, Any]) -> str:
    """Return a text with the paper's relative decrease by pruning, D = (Q - Q_p)/Q, and increase by scaling, I = r - 1, of each set."""
    written = []
    for name, key in (("D^Pruning", "pruning_decrease"), ("I^Scaling", "scaling_increase")):
        values = dict(numbers[key])
        own = values.pop("ID")
        listed = ", ".join(f"{part} {value:.3f}" for part, value in values.items())
        written.append(f"{name} is {own:.3f} on ID and {listed}")
    return "; ".join(written)


def _bins(first: Array, second: Array) -> list[Indices]:
    """Return the energy bin of each image; over both sets, bins have equal numbers of images."""
    edges = np.quantile(np.concatenate([first, second]), np.linspace(0, 1, BINS + 1)[1:-1])
    return [np.searchsorted(edges, energy) for energy in (first, second)]


def _array(values: Any) -> Array:
    return np.asarray(values, np.float64).ravel()


def ish_weights(acts: Activations, percentile: float = ISH_PERCENTILE) -> Array:
    """Return each image's weight in ISH's gradient of the final layer: exp(r), relative to the mean over the images."""
    factors = scale_ratio(acts.features, percentile).double().exp()
    return _array(factors / factors.mean())


def plot_weights(weights: Array, spread: float) -> Any:
    """Draw the distribution of the weights."""
    ax = style.axes_or_new()
    with style.house_style():
        ax.hist(weights, 50, histtype="stepfilled", color=style.ID_COLOUR, alpha=0.35)
        ax.axvline(1.0, color=style.MUTED, linestyle="--", linewidth=1)
        ax.set_yticks([])
        ax.grid(False)
    title = f"ISH weights: 95th percentile is {spread:.2f}x the 5th"
    return style.headline(ax, title, x=f"exp(Q/Q_p) relative to its mean, p = {ISH_PERCENTILE:g}")


def ish_study(data: StudyData) -> Study:
    """Return the weights of the training images, or of the test images if there are none."""
    part = data.train or data.ids
    weights = ish_weights(part.acts)
    low, high = np.percentile(weights, [5, 95])
    spread = float(high / low)
    kind = "training" if data.train else "test"
    line = (
        f"over {len(part.acts)} {kind} images at p = {ISH_PERCENTILE:g}, the image at the 95th percentile"
        f" weighs {spread:.2f} times that at the 5th"
    )
    drawn = {"ish-weights": (style.figure_of(plot_weights(weights, spread)), f"Distribution of ISH's weights. {line}")}
    order, tenth = np.argsort(weights, kind="stable"), max(1, len(weights) // 10)
    sure = torch.softmax(part.acts.logits, dim=1).amax(dim=1).numpy()
    heavy, light = (float(sure[rows].mean()) for rows in (order[-tenth:], order[:tenth]))
    line += f"; mean largest probability {heavy:.2f} on the tenth with the largest weights, {light:.2f} on the smallest"
    numbers = {"percentile": ISH_PERCENTILE, "spread": spread, "sure": [heavy, light]}
    return Study(line, numbers | {"most": order[::-1][:10].tolist(), "least": order[:10].tolist()}, drawn)

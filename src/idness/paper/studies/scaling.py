"""Scaling: AUROC by percentile, the ratio r = Q/Q_p of ID and OOD images, and the weights that ISH derives from it.

SCALE multiplies features by exp(r), so the logarithm of its energy is about r plus that of the plain one: r helps if it separates
images of the same energy, whether or not it is larger on ID images as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from idness.core.types import Activations, Head
from idness.detectors.detector import Detector, fit_many, score_many
from idness.detectors.kernels import scale_ratio
from idness.detectors.registry import build
from idness.metrics import auroc
from idness.paper.studies import Study, StudyData, count_larger, panels, plot_chances
from idness.report import figures, style

PERCENTILES = (10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 65.0, 70.0, 75.0, 80.0, 85.0, 90.0, 93.0, 95.0, 97.0, 99.0)
KINDS = {"scaling": ("scale", {}), "both": ("ash", {"variant": "s"}), "pruning": ("ash", {"variant": "p"})}
NAMES = {"scaling": "scaling (SCALE)", "both": "both (ASH-S)", "pruning": "pruning (ASH-P)"}
BINS = 20
"""Bins of equal size that energies are divided into."""
ISH_PERCENTILE = 85.0
"""The percentile at which ISH trains in the paper."""
Array = NDArray[np.float64]
Reader = Callable[[NDArray[np.int64]], Sequence[NDArray[np.uint8]]]


def sweep(
    head: Head, ids: Activations, oods: Mapping[str, Activations], percentiles: Sequence[float] = PERCENTILES
) -> tuple[dict[str, Array], float]:
    """Return the mean AUROC over the OOD sets by percentile, for every kind, and that of the plain energy."""
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
    """Sweep near and far sets."""
    figure, axes = style.new_figure(1, len(data.groups), size=(5.2 * len(data.groups), 3.5), squeeze=False)
    words, numbers = [], dict[str, Any]()
    for ax, (group, members) in zip(axes[0], data.groups.items(), strict=True):
        found, plain = sweep(data.head, data.ids.acts, {part: ood.acts for part, ood in members.items()})
        best = PERCENTILES[int(found["scaling"].argmax())]
        curves = [
            (NAMES[kind], curve, style.mark(index), best if kind == "scaling" else None)
            for index, (kind, curve) in enumerate(found.items())
        ]
        figures.draw_sweep(PERCENTILES, curves, plain, f"{group.capitalize()} OOD", ax)
        words.append(
            f"{group}: scaling best at p = {best:g} with AUROC {100 * found['scaling'].max():.1f}, plain energy {100 * plain:.1f}"
        )
        numbers[group] = {"percentiles": PERCENTILES, "ebo": plain, "best": best}
        numbers[group] |= {kind: curve.round(5).tolist() for kind, curve in found.items()}
    line = "; ".join(words)
    alt = f"AUROC against the percentile for scaling, pruning and both. {line}"
    return Study(line, numbers, {"percentiles": (figure, alt)})


def ratios(data: StudyData) -> Study:
    """Compare the ratio on every set at the best percentile of SCALE's search grid, alone and at equal energy.

    The paper argues that it is larger on ID images.
    """
    # Lower percentiles exclude zeros only, and every ratio is near 1.
    high = [p for p in PERCENTILES if p >= 65]
    others = {name: found.acts for name, found in data.oods.items()}
    best = high[int(sweep(data.head, data.ids.acts, others, high)[0]["scaling"].argmax())]
    parts = {"ID": data.ids.acts, **others}
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
    figures = {"ratios": (figure, f"Histograms of Q/Q_p. {line}")}
    figures["equal-energy"] = (plot_at_equal(energy, ratio, equal), f"Mean Q/Q_p of images by their energy. {verdict}")
    return Study(line, numbers, figures)


def larger_at_equal(id_energy: Array, ood_energy: Array, id_ratio: Array, ood_ratio: Array) -> float:
    """Return the chance that an ID image has a larger ratio than an OOD image whose energy is in the same bin."""
    edges = _edges(id_energy, ood_energy)
    places = [np.searchsorted(edges, energy) for energy in (id_energy, ood_energy)]
    total, pairs = 0.0, 0
    for part in range(BINS):
        ours, theirs = id_ratio[places[0] == part], ood_ratio[places[1] == part]
        count = len(ours) * len(theirs)
        if count:
            total, pairs = total + count * auroc(ours, theirs), pairs + count
    return total / pairs if pairs else 0.5


def plot_at_equal(energy: Mapping[str, Array], ratio: Mapping[str, Array], equal: Mapping[str, float]) -> Any:
    """Draw the mean ratio of ID and OOD images against their energy, one panel per OOD set."""
    figure, axes = panels(list(equal))
    for place, (ax, (name, chance)) in enumerate(zip(axes, equal.items(), strict=True)):
        edges = _edges(energy["ID"], energy[name])
        for part, colour, shown in (("ID", style.ID_COLOUR, "ID"), (name, style.OOD_COLOUR, "OOD")):
            bins = np.searchsorted(edges, energy[part])
            present = [b for b in range(BINS) if (bins == b).sum() > 1]
            means = [(energy[part][bins == b].mean(), ratio[part][bins == b].mean()) for b in present]
            ax.plot(*np.array(means).reshape(-1, 2).T, marker="o", markersize=3, color=colour, label=shown)
        if place == 0:
            style.draw_legend(ax, fontsize=7)
        style.headline(ax, f"{name}: at equal energy {100 * chance:.0f} %", x="energy", y="mean $Q/Q_p$")
    return figure


def _verdict(chances: Mapping[str, float], equal: Mapping[str, float], gains: Mapping[str, float]) -> str:
    """Write what the gain comes from, and where the paper's explanation is refuted."""
    listed = ", ".join(f"{name} {100 * chance:.0f} %" for name, chance in equal.items())
    at_equal = f"among images of equal energy it is larger on ID in {listed} of pairs"
    against = [name for name, chance in chances.items() if chance <= 0.5]
    won = [name for name in against if gains[name] > 0 and equal[name] > 0.5]
    if not against:
        return f"{at_equal}; the paper's explanation, a larger r on ID images, holds here"
    refuted = f"{at_equal}; the paper's explanation, a larger r on ID images, is refuted on {', '.join(against)}"
    if won:
        refuted += f"; SCALE still gains on {', '.join(won)}, since r is larger on ID at equal energy"
    return refuted


def _shifts(numbers: Mapping[str, Any]) -> str:
    """Write the paper's relative decrease by pruning, D = (Q - Q_p)/Q, and increase by scaling, I = r - 1, of every set."""
    written = []
    for name, key in (("D^Pruning", "pruning_decrease"), ("I^Scaling", "scaling_increase")):
        values = dict(numbers[key])
        own = values.pop("ID")
        listed = ", ".join(f"{part} {value:.3f}" for part, value in values.items())
        written.append(f"{name} is {own:.3f} on ID and {listed}")
    return "; ".join(written)


def _edges(first: Array, second: Array) -> Array:
    """Return the inner edges of energy bins with equal numbers of images."""
    found: Array = np.quantile(np.concatenate([first, second]), np.linspace(0, 1, BINS + 1)[1:-1])
    return found


def _array(values: Any) -> Array:
    return np.asarray(values, np.float64).ravel()


def ish_weights(acts: Activations, percentile: float = ISH_PERCENTILE) -> Array:
    """Return each image's weight in ISH's gradient of the final layer: exp(r), relative to the mean over the images."""
    factors = scale_ratio(acts.features, percentile).double().exp()
    return _array(factors / factors.mean())


def weight_extremes(weights: Array, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows with the largest weights, largest first, and with the smallest, smallest first."""
    order = np.argsort(weights, kind="stable")
    return order[::-1][:count].copy(), order[:count].copy()


def plot_weights(weights: Array, spread: float) -> Any:
    """Draw the distribution of the weights."""
    ax = style.axes_or_new()
    low, high = np.percentile(weights, [0.2, 99.8])
    edges = np.linspace(low, high if high > low else low + 1, 51)
    with style.house_style():
        counts = np.histogram(weights, edges)[0]
        ax.stairs(counts, edges, fill=True, color=style.ID_COLOUR, alpha=0.35)
        ax.stairs(counts, edges, color=style.ID_COLOUR)
        ax.axvline(1.0, color=style.MUTED, linestyle="--", linewidth=1)
        ax.set_yticks([])
        ax.grid(False)
    style.say_beyond(ax, weights, edges[0], edges[-1])
    title = f"ISH weights: 95th percentile is {spread:.2f}x the 5th"
    return style.headline(ax, title, x=f"exp(Q/Q_p) relative to its mean, p = {ISH_PERCENTILE:g}")


def plot_extremes(weights: Array, read: Reader, labels: Sequence[str] = (), *, count: int = 10) -> Any:
    """Draw the images with the largest and smallest weights, `count` of each; `read` returns the images of some rows."""
    count = min(count, len(weights))
    figure, axes = style.new_figure(2, count, size=(0.92 * count + 0.4, 2.9), squeeze=False)
    with style.house_style():
        for row, (rows, name) in enumerate(zip(weight_extremes(weights, count), ("largest", "smallest"), strict=True)):
            for ax, index, image in zip(axes[row], rows, read(rows), strict=True):
                ax.imshow(image, interpolation="nearest")
                ax.set(xticks=[], yticks=[])
                ax.grid(False)
                ax.spines[["left", "bottom"]].set_visible(False)
                ax.set_title(labels[index] if labels else "", fontsize=7, fontweight="normal", loc="center")
                ax.set_xlabel(f"{weights[index]:.2f}", fontsize=8)
            axes[row][0].set_ylabel(f"{name} weight", fontsize=8)
    return figure


def ish_study(data: StudyData) -> Study:
    """Weigh the training images, or the test images if there are none."""
    part = data.train or data.ids
    weights = ish_weights(part.acts)
    low, high = np.percentile(weights, [5, 95])
    spread = float(high / low)
    kind = "training" if data.train else "test"
    line = (
        f"over {len(part.acts)} {kind} images at p = {ISH_PERCENTILE:g}, the image at the 95th percentile"
        f" weighs {spread:.2f} times that at the 5th"
    )
    figures = {
        "ish-weights": (style.figure_of(plot_weights(weights, spread)), f"Distribution of ISH's weights. {line}")
    }
    count = min(10, len(part.acts))
    most, least = weight_extremes(weights, count)
    labels: list[str] = []
    if part.acts.labels is not None:
        known = data.classes
        labels = [known[int(n)] if int(n) < len(known) else str(int(n)) for n in part.acts.labels]
    if part.images is not None:
        figure = plot_extremes(weights, part.thumbnails, labels, count=count)
        figures["ish-images"] = (figure, "The images with the largest and smallest weights in ISH")
    if labels:
        common = [Counter(labels[row] for row in rows).most_common(3) for rows in (most, least)]
        first, last = (", ".join(f"{number} {label}" for label, number in found) for found in common)
        line += f"; largest: {first}, smallest: {last}"
    sure = torch.softmax(part.acts.logits, dim=1).amax(dim=1)
    heavy, light = (
        float(sure[torch.from_numpy(rows)].mean()) for rows in weight_extremes(weights, max(1, len(sure) // 10))
    )
    line += f"; mean largest probability {heavy:.2f} on the tenth with the largest weights, {light:.2f} on the smallest"
    numbers = {
        "percentile": ISH_PERCENTILE,
        "spread": spread,
        "sure": [heavy, light],
        "most": most.tolist(),
        "least": least.tolist(),
    }
    return Study(line, numbers, figures)

"""Shows the scale ratio r = Q/Q_p of ID against OOD images: alone, and among images of the same energy.

SCALE multiplies by exp(r), so that the logarithm of its energy is about r plus that of the plain one: r helps where it tells
apart images that the energy does not, whether or not it is larger on ID images as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idness.core.types import Activations
from idness.detectors.kernels import scale_ratio
from idness.detectors.registry import build
from idness.metrics import auroc
from idness.paper.studies.percentiles import sweep_of
from idness.paper.studies.specimen import COLUMNS, Specimen, Study, counted, plot_chances
from idness.report import style

BINS = 20
"""Into how many parts of as many images each the energies are cut."""
Array = NDArray[np.float64]


def study(specimen: Specimen) -> Study:
    """Compare the ratio on every set at the best percentile of scaling within its search grid, alone and at equal energy.

    The paper's argument wants it larger on ID images, well above one half of the time.
    """
    # Lower percentiles leave out zeros only, and every ratio is near 1.
    best = sweep_of(specimen, specimen.oods).best(lowest=65)
    parts = {"ID": specimen.ids.acts} | {name: found.acts for name, found in specimen.oods.items()}
    ratio = {name: _array(scale_ratio(acts.features, best)) for name, acts in parts.items()}
    energy = _energies(specimen, parts)
    ids, oods = ratio["ID"], {name: ratio[name] for name in specimen.oods}
    figure, chances = plot_chances(ids, oods, "larger", x=f"$Q/Q_p$ at p = {best:g}")
    equal = {name: larger_at_equal(energy["ID"], energy[name], ids, oods[name]) for name in oods}
    gains = _gains(specimen, best)
    line = f"at p = {best:g}, r = Q/Q_p alone is larger on ID than on {counted(chances)}"
    said = _verdict(chances, equal, gains)
    numbers = {
        "percentile": best,
        "id_larger": chances,
        "id_larger_at_equal_energy": equal,
        "scale_minus_ebo": gains,
        "pruning_decrease": {name: float((1 - 1 / r).mean()) for name, r in ratio.items()},
        "scaling_increase": {name: float((r - 1).mean()) for name, r in ratio.items()},
    }
    line = f"{line}; {said}; {shifts(numbers)}"
    figures = {"ratios": (figure, f"Histograms of Q/Q_p. {line}")}
    figures["equal-energy"] = (plot_at_equal(energy, ratio, equal), f"Mean Q/Q_p of images by their energy. {said}")
    return Study(line, numbers, figures)


def larger_at_equal(id_energy: Array, ood_energy: Array, id_ratio: Array, ood_ratio: Array) -> float:
    """Give the chance that an ID image has the larger ratio than an OOD image whose energy lies in the same part of all."""
    edges = _edges(id_energy, ood_energy)
    places = [np.searchsorted(edges, energy) for energy in (id_energy, ood_energy)]
    total, pairs = 0.0, 0
    for part in range(BINS):
        ours, theirs = id_ratio[places[0] == part], ood_ratio[places[1] == part]
        count = len(ours) * len(theirs)
        if count:
            total, pairs = total + count * auroc(ours, theirs), pairs + count
    return total / pairs if pairs else 0.5


def shifts(numbers: Mapping[str, Any]) -> str:
    """Write the paper's relative decrease by pruning, D = (Q - Q_p)/Q, and increase by scaling, I = r - 1, of every set."""
    written = []
    for name, key in (("D^Pruning", "pruning_decrease"), ("I^Scaling", "scaling_increase")):
        values = dict(numbers[key])
        own = values.pop("ID")
        listed = ", ".join(f"{part} {value:.3f}" for part, value in values.items())
        written.append(f"{name} is {own:.3f} on ID and {listed}")
    return "; ".join(written)


def plot_at_equal(energy: Mapping[str, Array], ratio: Mapping[str, Array], equal: Mapping[str, float]) -> Any:
    """Draw the mean ratio of ID and OOD images against their energy, a panel for each OOD set."""
    columns = min(COLUMNS, len(equal))
    rows = -(-len(equal) // columns)
    figure, axes = style.new_figure(rows, columns, size=(2.9 * columns, 2.35 * rows), squeeze=False)
    for spare in axes.flat[len(equal) :]:
        spare.remove()
    for place, (ax, (name, chance)) in enumerate(zip(axes.flat, equal.items(), strict=False)):
        edges = _edges(energy["ID"], energy[name])
        for part, colour, shown in (("ID", style.ID_COLOUR, "ID"), (name, style.OOD_COLOUR, "OOD")):
            bins = np.searchsorted(edges, energy[part])
            present = [b for b in range(BINS) if (bins == b).sum() > 1]
            means = [(energy[part][bins == b].mean(), ratio[part][bins == b].mean()) for b in present]
            ax.plot(*np.array(means).reshape(-1, 2).T, marker="o", markersize=3, color=colour, label=shown)
        if place == 0:
            style.legend(ax, fontsize=7)
        style.headline(ax, f"{name}: at equal energy {100 * chance:.0f} %", x="energy", y="mean $Q/Q_p$")
    return figure


def _energies(specimen: Specimen, parts: Mapping[str, Activations]) -> dict[str, Array]:
    plain = build("ebo").fit(specimen.head)
    return {name: _array(plain.score(acts)) for name, acts in parts.items()}


def _gains(specimen: Specimen, percentile: float) -> dict[str, float]:
    """Give what scaling adds to the AUROC of the energy on each set."""
    both = [build("ebo").fit(specimen.head), build("scale", percentile=percentile).fit(specimen.head)]
    good = [detector.score(specimen.ids.acts) for detector in both]
    found = {}
    for name, part in specimen.oods.items():
        plain, scaled = (auroc(own, detector.score(part.acts)) for own, detector in zip(good, both, strict=True))
        found[name] = scaled - plain
    return found


def _verdict(chances: Mapping[str, float], equal: Mapping[str, float], gains: Mapping[str, float]) -> str:
    """Say what the gain comes from, and where the paper's explanation, a larger r on ID images, is refuted."""
    at_equal = ", ".join(f"{name} {100 * chance:.0f} %" for name, chance in equal.items())
    said = f"among images of equal energy it is larger on ID in {at_equal} of pairs"
    against = [name for name, chance in chances.items() if chance <= 0.5]
    won = [name for name in against if gains[name] > 0 and equal[name] > 0.5]
    if not against:
        return f"{said}; the paper's explanation, a larger r on ID images, holds here"
    refuted = f"{said}; the paper's explanation, a larger r on ID images, is refuted on {', '.join(against)}"
    if won:
        refuted += f"; SCALE gains on {', '.join(won)} all the same, since r is larger on ID where the energy is equal"
    return refuted


def _edges(first: Array, second: Array) -> Array:
    """Cut both sides' energies into parts of as many images each."""
    found: Array = np.quantile(np.concatenate([first, second]), np.linspace(0, 1, BINS + 1)[1:-1])
    return found


def _array(values: Any) -> Array:
    return np.asarray(values, np.float64).ravel()

"""Shows the scale ratio r = Q/Q_p of ID against OOD images."""

from __future__ import annotations

from idness.detectors.kernels import scale_ratio
from idness.paper.studies.percentiles import sweep_of
from idness.paper.studies.specimen import Specimen, Study, counted, plot_chances


def study(specimen: Specimen) -> Study:
    """Compare the ratio on every set at the best percentile of scaling within its search grid.

    The paper's argument wants it larger on ID images, well above one half of the time.
    """
    # Lower percentiles leave out zeros only, and every ratio is near 1.
    best = sweep_of(specimen, specimen.oods).best(lowest=65)
    ids = scale_ratio(specimen.ids.acts.features, best)
    oods = {name: scale_ratio(found.acts.features, best) for name, found in specimen.oods.items()}
    figure, chances = plot_chances(ids, oods, "larger", x=f"$Q/Q_p$ at p = {best:g}")
    line = f"at p = {best:g}, r = Q/Q_p alone is larger on ID than on {counted(chances)}"
    numbers = {"percentile": best, "id_larger": chances}
    return Study(line, numbers, {"ratios": (figure, f"Histograms of Q/Q_p. {line}")})

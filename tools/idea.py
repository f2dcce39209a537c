"""Draw the figures of docs/idea.md: python tools/idea.py

`docs/idea.svg` shows why scaling separates ID from OOD, on the embedded network and images. `docs/idea-cifar6.svg` and
results/analysis/cifar6-ratios.json show r at equal energy; the same figures of the DenseNet-101 and of MobileNetV2 are copied from
results/analysis. A test compares the numbers of docs/idea.md with these files.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch

from idness import Activations, SplitModel, build, load_model, metrics
from idness.core.files import atomic_write
from idness.data import Preprocessing, embedded
from idness.detectors.kernels import scale_ratio
from idness.paper.studies import load_study_data, scaling
from idness.report import style

ROOT = Path(__file__).resolve().parents[1]
ANALYSIS = ROOT / "results" / "analysis"
COPIED = {"densenet": "cifar10-isun", "mobilenet": "imagenet-sample"}
LIMIT = 400
PERCENTILE = 85.0
OOD = "textures"


def activations(split: SplitModel, name: str) -> Activations:
    """Return the activations of an embedded set."""
    mean, std = embedded.normalisation()
    return split.extract(Preprocessing(mean=mean, std=std).normalize(embedded.load(name).images).split(250))


def histograms() -> None:
    """Draw the ratio, the plain energy and the scaled one, ID against OOD images."""
    split = SplitModel(load_model("cifar6:base"))
    known, unknown = activations(split, "id_test"), activations(split, OOD)
    figure, axes = style.new_figure(1, 3, size=(9.6, 2.9))
    pairs = [("ratio r", [scale_ratio(acts.features, PERCENTILE) for acts in (known, unknown)])]
    for title, name, options in (("energy", "ebo", {}), ("energy after scaling", "scale", {"percentile": PERCENTILE})):
        detector = build(name, **options).fit(split.head)
        pairs.append((title, [detector.score(acts) for acts in (known, unknown)]))
    for ax, (title, (first, second)) in zip(axes, pairs, strict=True):
        style.two_histograms(ax, first.numpy(), second.numpy(), ("known", f"unknown ({OOD})"))
        style.headline(ax, title, x=f"AUROC {100 * metrics.auroc(first, second):.1f} %")
    style.draw_legend(axes[0])
    alt = "Histograms of the ratio r, of the energy and of the scaled energy, known against unknown images"
    svg = style.figure_svg(figure, alt=alt, adaptive=False)
    atomic_write(ROOT / "docs" / "idea.svg", f'<?xml version="1.0" encoding="utf-8"?>\n{svg}')


def equal_energy() -> None:
    """Measure r at equal energy on the embedded network, and copy the figures of the other two."""
    found = scaling.ratios(load_study_data(None, "cifar6", limit=LIMIT))
    content = {"limit": LIMIT, "line": found.line, **found.numbers}
    atomic_write(ANALYSIS / "cifar6-ratios.json", json.dumps(content, indent=1) + "\n")
    figure, alt = found.figures["equal-energy"]
    for path in style.save(figure, ROOT / "docs" / "idea-cifar6", alt=alt):
        if path.suffix == ".png":
            path.unlink()
    for name, folder in COPIED.items():
        shutil.copyfile(ANALYSIS / folder / "equal-energy.svg", ROOT / "docs" / f"idea-{name}.svg")


if __name__ == "__main__":
    torch.set_num_threads(1)
    histograms()
    equal_energy()

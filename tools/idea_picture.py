"""Draws docs/idea.svg: why scaling separates, on the embedded network and images."""

from __future__ import annotations

from pathlib import Path

import torch

from idness import Activations, SplitModel, build, load_model, metrics
from idness.core.files import atomic_write
from idness.detectors.kernels import scale_ratio
from idness.embedded import load
from idness.report import style

PERCENTILE = 85.0
KNOWN, UNKNOWN = "id_test", "textures"
TARGET = Path(__file__).resolve().parents[1] / "docs" / "idea.svg"


def activations(split: SplitModel, name: str) -> Activations:
    """Run an embedded set through the network."""
    mean, std = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2023, 0.1994, 0.2010])
    images = ((torch.from_numpy(load(name).images) / 255 - mean) / std).permute(0, 3, 1, 2)
    return split.extract(images.split(250))


def main() -> None:
    """Draw the ratio, the plain energy and the scaled one, known against unknown images."""
    split = SplitModel(load_model("cifar6:base"))
    known, unknown = activations(split, KNOWN), activations(split, UNKNOWN)
    figure, axes = style.new_figure(1, 3, size=(9.6, 2.9))
    pairs = [("ratio r", [scale_ratio(acts.features, PERCENTILE) for acts in (known, unknown)])]
    for title, name, options in (("energy", "ebo", {}), ("energy after scaling", "scale", {"percentile": PERCENTILE})):
        detector = build(name, **options).fit(split.head)
        pairs.append((title, [detector.score(acts) for acts in (known, unknown)]))
    for ax, (title, (first, second)) in zip(axes, pairs, strict=True):
        style.two_histograms(ax, first.numpy(), second.numpy(), ("known", f"unknown ({UNKNOWN})"))
        style.headline(ax, title, x=f"AUROC {100 * metrics.auroc(first, second):.1f} %")
    style.legend(axes[0])
    alt = "Histograms of the ratio r, of the energy and of the scaled energy, known against unknown images"
    atomic_write(TARGET, '<?xml version="1.0" encoding="utf-8"?>\n' + style.figure_svg(figure, alt=alt, adaptive=False))
    print(f"wrote {TARGET.name}")


if __name__ == "__main__":
    main()

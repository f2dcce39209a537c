"""Draws docs/idea-cifar6.svg and writes results/analysis/cifar6-ratios.json: r at equal energy, on the embedded network.

The same figures of the DenseNet-101 and of MobileNetV2 are those of results/analysis/cifar10-isun and results/analysis/imagenet-sample,
copied to docs/; a test compares the numbers of docs/idea.md with these files.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch

from idness.core.files import atomic_write
from idness.paper.studies import ratios
from idness.paper.studies.specimen import take_specimen
from idness.report import style

ROOT = Path(__file__).resolve().parents[1]
ANALYSIS = ROOT / "results" / "analysis"
COPIED = {"densenet": "cifar10-isun", "mobilenet": "imagenet-sample"}
LIMIT = 400


def main() -> None:
    """Measure the embedded network, and bring all three figures to docs/."""
    torch.set_num_threads(1)
    specimen = take_specimen(None, "cifar6", limit=LIMIT)
    specimen.train = specimen.val = None
    found = ratios.study(specimen)
    content = {"limit": LIMIT, "line": found.line, **found.numbers}
    atomic_write(ANALYSIS / "cifar6-ratios.json", json.dumps(content, indent=1) + "\n")
    figure, alt = found.figures["equal-energy"]
    for path in style.save(figure, ROOT / "docs" / "idea-cifar6", alt=alt):
        if path.suffix == ".png":
            path.unlink()
    for name, folder in COPIED.items():
        shutil.copyfile(ANALYSIS / folder / "equal-energy.svg", ROOT / "docs" / f"idea-{name}.svg")


if __name__ == "__main__":
    main()

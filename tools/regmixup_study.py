# ruff: noqa: E501
"""Measure why RegMixup's energy fails on drawings: python tools/regmixup_study.py runs/NAME/weights.safetensors

Writes results/training/regmixup.md and .json: the embedded base network beside one that was fine-tuned on by RegMixup, as it is and
with batch norm's statistics of plain images alone; and what halving the contrast of images, or mixing them with ID images, does to
their energies.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from idness.core.files import atomic_write
from idness.data import embedded
from idness.detectors.registry import build
from idness.metrics import auroc
from idness.networks.split import SplitModel, load_weights
from idness.training import cifar6, networks
from idness.training.images import crop_flip
from idness.training.objective import Objective
from idness.training.plan import seeded
from idness.training.settings import CIFAR_MEAN, CIFAR_STD

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "results" / "training"
IMAGES, BATCHES = 500, 12


def normalised(images: Tensor) -> Tensor:
    """Normalise uint8 images as in training."""
    return Objective(nn.Identity(), 6, CIFAR_MEAN, CIFAR_STD).normalise(images.permute(0, 3, 1, 2))


def of_plain_images(model: nn.Module, archive: Path) -> nn.Module:
    """Give a copy whose batch norm has the statistics of training images alone, without mixtures."""
    fresh, data = copy.deepcopy(model), cifar6(archive)
    for module in fresh.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None  # a plain mean
    fresh.train()
    with torch.no_grad():
        for number in range(BATCHES):
            chosen = torch.randperm(len(data), generator=seeded(number))[:128]
            fresh(normalised(crop_flip(data.images[chosen], seeded(number, "crop"))))
    return fresh.eval()


def measure(model: nn.Module, sets: dict[str, Tensor]) -> dict[str, Any]:
    """Give AUROC by energy and by largest probability, and mean energies: plain, at half the contrast, mixed with ID images."""
    split = SplitModel(model.eval())
    energy, msp = (build(name).fit(split.head) for name in ("ebo", "msp"))

    def seen(images: Tensor) -> Any:
        return split.extract(batches(images))

    plain = {name: seen(images) for name, images in sets.items()}
    own = sets["id_test"]
    other = own[torch.randperm(len(own), generator=seeded("mix"))]
    means = {name: float(energy.score(acts).mean()) for name, acts in plain.items()}
    half = {name: float(energy.score(seen(images / 2)).mean()) for name, images in sets.items()}
    mixed = {name: (images[: len(other)] + other[: len(images)]) / 2 for name, images in sets.items()}
    others = [name for name in sets if name != "id_test"]
    return {
        "ebo": {name: auroc(energy.score(plain["id_test"]), energy.score(plain[name])) for name in others},
        "msp": {name: auroc(msp.score(plain["id_test"]), msp.score(plain[name])) for name in others},
        "energy": means,
        "energy_half_contrast": half,
        "energy_mixed": {name: float(energy.score(seen(images)).mean()) for name, images in mixed.items()},
    }


def batches(images: Tensor) -> Iterator[Tensor]:
    """Cut normalised images into batches."""
    yield from torch.split(images, 250)


def written(found: dict[str, dict[str, Any]], contrast: dict[str, float]) -> str:
    """Write the page."""
    sets = list(contrast)
    head = f"| | {' | '.join(sets)} |\n|---|{'--:|' * len(sets)}"

    def line(title: str, values: dict[str, float], scale: float = 1.0, digits: int = 1) -> str:
        return f"| {title} | {' | '.join(f'{scale * values[s]:.{digits}f}' if s in values else '' for s in sets)} |"

    aurocs = [line(f"{name}, {score}", m[score], 100) for name, m in found.items() for score in ("ebo", "msp")]
    energies = [line(f"{name}", m["energy"], 1, 2) for name, m in found.items()]
    halves = [line(f"{name}, half the contrast", m["energy_half_contrast"], 1, 2) for name, m in found.items()]
    mixtures = [line(f"{name}, mixed with ID images", m["energy_mixed"], 1, 2) for name, m in found.items()]
    return "\n".join(
        [
            "# Why RegMixup's energy fails on drawings",
            "",
            "Made by `python tools/regmixup_study.py`; every number is in `regmixup.json`. The embedded base network, and the same after an",
            f"epoch of RegMixup (alpha 20, weight 1, rate from 0.003); about {IMAGES} images of each set.",
            "",
            "AUROC, percent:",
            "",
            head,
            *aurocs,
            "",
            "Mean energy, and the contrast of the images (standard deviation of their normalised values):",
            "",
            head,
            line("contrast", contrast, 1, 2),
            *energies,
            *halves,
            *mixtures,
            "",
            *reasons(found["base"], found["RegMixup"]),
            "",
        ]
    )


def reasons(base: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Say what the numbers mean."""

    def fall(kind: str, name: str) -> str:
        return f"{base[kind][name]:.1f} to {after[kind][name]:.1f}"

    return [
        "- **It is not batch norm.** Images and mixtures pass in one batch, so that its statistics are of both; with statistics of plain",
        '  images alone ("plain statistics") the numbers are much the same.',
        "- **What looks mixed gets a low energy, and nothing else does.** RegMixup asks for probabilities of a half on means of two",
        f"  images: their energy falls from {fall('energy_mixed', 'id_test')}, and with it that of every photograph, ID images included",
        f"  ({fall('energy', 'id_test')}). A digit or a drawing is one shape on an empty ground, the opposite of a mixture: its energy goes from",
        f"  {fall('energy', 'mnist')} on MNIST and {fall('energy', 'quickdraw')} on Quick, Draw!, and so it comes to lie among the ID images.",
        f"  Mixed with photographs, the same digits go from {fall('energy_mixed', 'mnist')}. Contrast is not the reason: at half of it digits have",
        f"  {after['energy_half_contrast']['mnist']:.1f}, ID images {after['energy_half_contrast']['id_test']:.1f}.",
        "- **What to do.** Read the largest probability (MSP), as RegMixup's authors do: it loses less. The paper reads RegMixup with SCALE on",
        "  ImageNet, whose OOD sets are photographs, which suffer far less here too.",
    ]


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description="Measure why RegMixup's energy fails on drawings.")
    parser.add_argument("weights", type=Path, help="weights of small_resnet after RegMixup")
    parser.add_argument("--archive", type=Path, default=ROOT / ".data" / "cifar10.npz", help="CIFAR-10 as .npz")
    given = parser.parse_args()
    torch.set_num_threads(1)
    names = ["id_test", *embedded.sets("near"), *embedded.sets("far")]
    read = {name: torch.from_numpy(embedded.load(name).images) for name in names}
    sets = {name: normalised(images[:: max(1, len(images) // IMAGES)]) for name, images in read.items()}
    base = load_weights(networks.build("small_resnet", 6), embedded.CIFAR6 / "base.safetensors")
    mixed = load_weights(networks.build("small_resnet", 6), given.weights)
    found = {"base": measure(base, sets), "RegMixup": measure(mixed, sets)}
    found["RegMixup, plain statistics"] = measure(of_plain_images(mixed, given.archive), sets)
    contrast = {name: float(images.flatten(1).std(1).mean()) for name, images in sets.items()}
    atomic_write(OUT / "regmixup.json", json.dumps({"networks": found, "contrast": contrast}, indent=1) + "\n")
    page = written(found, contrast)
    atomic_write(OUT / "regmixup.md", page)
    print(page)


if __name__ == "__main__":
    main()

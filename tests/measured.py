"""A whole benchmark of the small world in a second, run by the library itself."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import colour_world
import numpy as np
import tiny_net
import torch
from PIL import Image
from torch import nn

from idness.benchmark import Benchmark, Settings, run
from idness.benchmark.results import Report

ROWS = ("msp", "ebo", "knn", "react", "ash-s", "ash-p", "scale")
COLOURS = list(colour_world.COLOURS)
NEAR, FAR = ("pale", "mixed"), ("noise", "stripes")
SIDE, COUNT = 16, 150


def disc(seed: int) -> Image.Image:
    """Draw what the network knows."""
    return colour_world.known(COLOURS[seed % 4], seed, SIDE)


def noise(seed: int) -> Image.Image:
    return colour_world.ood_picture(2 * seed, SIDE)


def stripes(seed: int) -> Image.Image:
    return colour_world.ood_picture(2 * seed + 1, SIDE)


def pale(seed: int) -> Image.Image:
    """Draw a disc that has lost most of its colour."""
    return Image.blend(disc(seed), disc(seed).convert("L").convert("RGB"), 0.75)


def mixed(seed: int) -> Image.Image:
    """Draw two discs of different colours at once."""
    return Image.blend(disc(seed), disc(seed + 1), 0.5)


def veiled(seed: int) -> Image.Image:
    """Draw a disc behind noise."""
    return Image.blend(disc(seed), noise(seed), 0.5)


DRAWN: dict[str, Callable[[int], Image.Image]] = {
    "train": disc, "val": disc, "test": disc, "veiled": veiled, "pale": pale, "mixed": mixed, "noise": noise, "stripes": stripes,
}  # fmt: skip


@cache
def place() -> tempfile.TemporaryDirectory[str]:
    """Draw all sets into a folder, once for all tests of a process."""
    folder = tempfile.TemporaryDirectory(prefix="measured-")
    for number, (name, draw) in enumerate(DRAWN.items()):
        seeds = range(10_000 * number, 10_000 * number + COUNT)
        pixels = np.stack([np.asarray(draw(seed)) for seed in seeds])
        labels = {"labels": np.arange(COUNT) % 4} if draw is disc else {}
        np.savez(Path(folder.name) / f"{name}.npz", images=pixels, **labels)
    return folder


def network(seed: int = 0, disturbed: float | None = 0.0) -> nn.Module:
    """Give the trained network with its weights disturbed by a share of their spread, or one that was never trained."""
    model = tiny_net.make()
    if disturbed is not None:
        model.load_state_dict(colour_world.trained().state_dict())
        rng = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            parameter.data += disturbed * parameter.data.std() * torch.randn(parameter.shape, generator=rng)
    return model.eval()


def bench(
    folder: Path,
    *,
    seed: int = 0,
    disturbed: float | None = 0.0,
    rows: Sequence[str] = ROWS,
    near: Sequence[str] = NEAR,
    far: Sequence[str] = FAR,
    classes: Sequence[str] = COLOURS,
    validation: bool = True,
    any_accuracy: bool = False,
) -> Report:
    """Measure a network, and write the folder that `idness bench` would; the sets may be given other names."""
    benchmark = Benchmark(
        name="colours",
        title="Four colours",
        id={part: f"{part}.npz" for part in ("train", "val", "test")},
        ood_val={"veiled": "veiled.npz"} if validation else {},
        near={name: f"{name}.npz" for name in NEAR},
        far={name: f"{name}.npz" for name in FAR},
        classes=tuple(classes),
        preprocessing={"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]},
        base=Path(place().name),
    )
    # Past the check of names: others' results may hold anything.
    for group, wanted, drawn in (("near", near, NEAR), ("far", far, FAR)):
        named = {name: f"{file}.npz" for name, file in zip(wanted, drawn, strict=True)}
        object.__setattr__(benchmark, group, named)
    settings = Settings(
        methods=list(rows),
        cache=Path(place().name) / "cache",
        seed=seed,
        command="idness bench colours.toml",
        any_accuracy=any_accuracy,
    )
    run(benchmark, network(seed, disturbed), settings).save(folder)
    return Report.load(folder)

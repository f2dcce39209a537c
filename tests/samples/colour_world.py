"""A small world to test in: coloured discs are known, stripes and noise are OOD."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tiny_net import Tiny, make
from torch import Tensor, nn

from idness.data import Preprocessing

HOW = Preprocessing.from_dict(Tiny.preprocessing)
COLOURS = {"red": (220, 40, 40), "green": (40, 190, 60), "blue": (50, 70, 220), "yellow": (230, 210, 50)}


def known(name: str, seed: int, side: int = 24) -> Image.Image:
    """Draw a disc of one colour on a grey, noisy ground."""
    rng = np.random.default_rng([seed, len(name)])
    y, x = np.mgrid[:side, :side]
    centre, radius = rng.uniform(0.35, 0.65, 2) * side, rng.uniform(0.2, 0.4) * side
    disc = ((x - centre[0]) ** 2 + (y - centre[1]) ** 2 < radius**2)[..., None]
    pixels = np.where(disc, COLOURS[name], rng.integers(90, 150)) + rng.normal(0, 12, (side, side, 3))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def ood_picture(seed: int, side: int = 24) -> Image.Image:
    """Draw stripes or noise in grey."""
    rng = np.random.default_rng([seed, 99])
    _, x = np.mgrid[:side, :side]
    stripes = 127 + 120 * np.sign(np.sin(x * rng.uniform(0.8, 2.5)))
    pixels = stripes if seed % 2 else rng.uniform(0, 255, (side, side))
    return Image.fromarray(np.repeat(pixels[..., None], 3, axis=2).astype(np.uint8))


def write_folder(root: Path, per_class: int, first: int = 0) -> Path:
    """Write known pictures, one folder per class."""
    for name in COLOURS:
        (root / name).mkdir(parents=True, exist_ok=True)
        for seed in range(first, first + per_class):
            known(name, seed).save(root / name / f"{seed:04d}.png")
    return root


def write_ood(root: Path, count: int, first: int = 0) -> Path:
    """Write OOD pictures into one flat folder."""
    root.mkdir(parents=True, exist_ok=True)
    for seed in range(first, first + count):
        ood_picture(seed).save(root / f"ood-{seed:04d}.png")
    return root


def known_tensors(count: int, first: int = 0) -> tuple[Tensor, Tensor]:
    """Draw known pictures as the network takes them, with labels."""
    names = list(COLOURS)
    labels = torch.arange(count) % len(names)
    images = [HOW(known(names[int(label)], first + index)) for index, label in enumerate(labels)]
    return torch.stack(images), labels


def ood_tensors(count: int, first: int = 0) -> Tensor:
    """Draw OOD pictures as the network takes them."""
    return torch.stack([HOW(ood_picture(first + index)) for index in range(count)])


@cache
def trained() -> Tiny:
    """Train the small network until it knows its colours: the one trained network of all tests."""
    images, labels = known_tensors(160, first=10_000)
    model = make().train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return model.eval()

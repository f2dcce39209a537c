"""Sets of the small world's pictures as arrays and on disk, with its network and a benchmark of them."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import colour_world
import numpy as np
import tiny_net
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import nn

SIDE = 16
BENCHMARK = """
title = "Colours against grey"
classes = ["red", "green", "blue", "yellow"]
[preprocessing]
mean = [0.5, 0.5, 0.5]
std = [0.25, 0.25, 0.25]
[id]
train = "train.npz"
val = "val.npz"
test = "test.npz"
[ood_val]
uval = "uval.npz"
[near]
mixed = "near.npz"
[far]
grey = "far.npz"
"""


def pictures(count: int, seed: int, known: bool = True) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Draw known pictures, of each class in turn, or OOD pictures: noise, since two stripes may be the same."""
    labels, names, first = np.arange(count) % len(colour_world.COLOURS), list(colour_world.COLOURS), 10_000 * seed
    drawn = [
        colour_world.known(names[label], first + place, SIDE)
        if known
        else colour_world.ood_picture(first + 2 * place, SIDE)
        for place, label in enumerate(labels)
    ]
    return np.stack([np.asarray(picture) for picture in drawn]), labels.astype(np.int64)


def network() -> nn.Module:
    """Give a copy of the trained network, which a test may spoil."""
    return copy.deepcopy(colour_world.trained())


def world(folder: Path, count: int = 60) -> Path:
    """Write sets, a network with weights, and a benchmark file; return the latter."""
    for seed, name in enumerate(("train", "val", "test", "uval", "near", "far")):
        images, labels = pictures(count, seed, known=name in ("train", "val", "test"))
        if name == "near":
            images = images // 2 + pictures(count, 77)[0] // 2
        np.savez_compressed(folder / f"{name}.npz", images=images, labels=labels)
    shutil.copy(tiny_net.__file__, folder / "net.py")
    save_file(colour_world.trained().state_dict(), folder / "weights.safetensors")
    path = folder / "mine.toml"
    path.write_text(BENCHMARK)
    return path

"""Small sets of pictures on disk, and a small network in a file, for tests of the benchmark."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn

CLASSES = 3
SIDE = 8
NETWORK = """
import torch
from torch import nn

def make():
    return nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(48, 3))
"""


def pictures(count: int, seed: int, known: bool = True) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Known pictures have one bright colour in one half; unknown ones are dark and grey."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % CLASSES
    images = rng.integers(0, 90, (count, SIDE, SIDE, 3))
    if known:
        for place, label in enumerate(labels):
            images[place, :, : SIDE // 2, label] += rng.integers(60, 160)
    return images.astype(np.uint8), labels.astype(np.int64)


def network() -> nn.Module:
    """Build the network of the file, with fixed weights."""
    namespace: dict[str, object] = {}
    exec(NETWORK, namespace)
    torch.manual_seed(0)
    model = namespace["make"]()  # type: ignore[operator]
    images, labels = pictures(150, seed=9)
    train(model, torch.from_numpy(images).movedim(-1, 1).float().div(255).sub(0.3).div(0.2), torch.from_numpy(labels))
    return model


def train(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(25):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def world(folder: Path, count: int = 60, counts: dict[str, int] | None = None) -> Path:
    """Write sets, a network with weights, and a benchmark file; return the latter."""
    sizes = {"train": count, "val": count, "test": count, "uval": count, "near": count, "far": count} | (counts or {})
    for seed, (name, size) in enumerate(sizes.items()):
        images, labels = pictures(size, seed, known=name in ("train", "val", "test"))
        if name == "near":
            images = images // 2 + pictures(size, 77)[0] // 2
        np.savez_compressed(folder / f"{name}.npz", images=images, labels=labels)
    (folder / "net.py").write_text(NETWORK)
    save_file(network().state_dict(), folder / "weights.safetensors")
    path = folder / "mine.toml"
    path.write_text("""
title = "Bright against dark"
classes = ["red", "green", "blue"]
[preprocessing]
mean = [0.3, 0.3, 0.3]
std = [0.2, 0.2, 0.2]
[id]
train = "train.npz"
val = "val.npz"
test = "test.npz"
[ood_val]
uval = "uval.npz"
[near]
mixed = "near.npz"
[far]
dark = "far.npz"
""")
    return path

"""Makes the folder that the documents speak of: a network of one's own, ID and OOD images, and results of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from idness.benchmark import Settings, run
from idness.embedded import load
from idness.networks.split import load_model

NETWORK = '''
from torch import nn


def make():
    """A small network for images of any size, of three classes."""
    net = nn.Sequential(
        nn.Conv2d(3, 24, 5, stride=2), nn.BatchNorm2d(24), nn.ReLU(),
        nn.Conv2d(24, 48, 3, stride=2), nn.BatchNorm2d(48), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 3),
    )
    net.preprocessing = {"resize": 32, "crop": 32, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    return net
'''
BENCHMARK = """
title = "Small"
classes = ["first", "second", "third"]
[preprocessing]
mean = [0.485, 0.456, 0.406]
std = [0.229, 0.224, 0.225]
[id]
train = "id/train"
val = "id/val"
test = "id/test"
[ood_val]
some = "ood/validation"
[near]
similar = "ood/similar"
[far]
other = "ood/other"
"""
SERVE = """
import shlex, signal, subprocess, sys, time
server = subprocess.Popen(shlex.split(sys.argv[1]))
time.sleep(8)
assert server.poll() is None, "the server ended by itself"
server.send_signal(signal.SIGINT)
server.wait(20)
"""
EXTRAS = """
import sys, tomllib
known = tomllib.load(open(sys.argv[1], "rb"))["project"]["optional-dependencies"]
assert set(sys.argv[2].strip("[]").split(",")) <= {*known, ""}
"""
CLASSES = {"first": 0, "second": 1, "third": 2}
ROWS = ("msp", "ebo", "knn", "ash-s", "ash-p", "scale")


def make_workspace(root: Path) -> Path:
    """Fill a folder."""
    (root / "my_net.py").write_text(NETWORK)
    (root / "small.toml").write_text(BENCHMARK)
    (root / "serve_briefly.py").write_text(SERVE)
    (root / "extras_exist.py").write_text(EXTRAS)
    _images(root)
    for seed, name in ((0, "my_net"), (1, "other_net")):
        save_file(_trained(root, seed), root / f"{name}.safetensors")
    settings = {"methods": ROWS, "cache": root / ".cache", "batch_size": 64}
    for name, weights in (("before", "my_net"), ("after", "other_net")):
        chosen = Settings(weights=root / f"{weights}.safetensors", data=root, **settings)
        report = run(root / "small.toml", f"{root / 'my_net.py'}:make", chosen)
        folders = [f"runs/{name}", *(f"runs/{run}-seed{seed}" for run in ("plain", "ish") for seed in (0, 1))]
        for folder in folders if name == "before" else (folders[0], folders[2], folders[4]):
            report.save(root / folder)
        if name == "before":
            report.save(root / "results")
    return root


def _images(root: Path) -> None:
    start = 0
    known = load("id_train")
    for split in ("train", "val", "test"):
        for name, label in CLASSES.items():
            pixels = known.images[known.labels == label][start : start + 24]
            _save(root / "id" / split / name, pixels)
            if split == "val":
                _save(root / "my_images" / name, pixels)
        start += 24
    for folder, name in (("validation", "groceries"), ("similar", "cat"), ("other", "mnist")):
        _save(root / "ood" / folder, load(name).images[:40])
    _save(root / "new_images", load("textures").images[:3], "unknown")
    _save(root / "new_images", known.images[known.labels == 0][100:103], "known")


def _save(folder: Path, images: np.ndarray, prefix: str = "image") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for index, pixels in enumerate(images):
        Image.fromarray(pixels).save(folder / f"{prefix}_{index}.png")


def _trained(root: Path, seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    model = load_model(f"{root / 'my_net.py'}:make", "none").train()
    known = load("id_train")
    keep = np.isin(known.labels, list(CLASSES.values()))
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    images = ((torch.from_numpy(known.images[keep]) / 255 - mean) / std).permute(0, 3, 1, 2)
    labels = torch.from_numpy(known.labels[keep])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for part in torch.randint(len(images), (40, 128)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[part]), labels[part]).backward()
        optimizer.step()
    return {name: value.contiguous() for name, value in model.eval().state_dict().items()}

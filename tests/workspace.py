"""Makes the folder that the documents speak of: a network of one's own, ID and OOD images, and results of them."""

from __future__ import annotations

from pathlib import Path

import colour_world
import tiny_net
import torch
from PIL import Image
from safetensors.torch import save_file

from idness.benchmark import Settings, run

NETWORK = (
    Path(tiny_net.__file__)
    .read_text(encoding="utf-8")
    .replace("nn.Linear(32, 4)", "nn.Linear(32, 3)")
    .replace(str(tiny_net.Tiny.class_names).replace("'", '"'), '("first", "second", "third")')
)
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
import shlex, signal, subprocess, sys
# At any free port: on the machine that tests run on, the usual one may be taken.
server = subprocess.Popen([*shlex.split(sys.argv[1], comments=True), "--port", "0"], stderr=subprocess.PIPE, text=True)
said = next((line for line in server.stderr if "serving" in line), None)
assert said is not None, "the server ended by itself"
server.send_signal(signal.SIGINT)
assert server.wait(60) == 0
"""
EXTRAS = """
import sys, tomllib
known = tomllib.load(open(sys.argv[1], "rb"))["project"]["optional-dependencies"]
assert set(sys.argv[2].strip("[]").split(",")) <= {*known, ""}
"""
CLASSES = {"first": "red", "second": "green", "third": "blue"}
ROWS = ("msp", "ebo", "knn", "ash-s", "ash-p", "scale")


def make_workspace(root: Path) -> Path:
    """Fill a folder."""
    (root / "my_net.py").write_text(NETWORK)
    (root / "small.toml").write_text(BENCHMARK)
    (root / "serve_briefly.py").write_text(SERVE)
    (root / "extras_exist.py").write_text(EXTRAS)
    _images(root)
    for name, disturbed in (("my_net", 0.0), ("other_net", 0.05)):
        save_file(_weights(disturbed), root / f"{name}.safetensors")
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
    """Draw three of the small world's colours as ID images; its fourth, noise and stripes as OOD images."""
    for first, split in ((0, "train"), (100, "val"), (200, "test")):
        for name, colour in CLASSES.items():
            folders = [root / "id" / split / name, *([root / "my_images" / name] if split == "val" else [])]
            _save([colour_world.known(colour, first + seed) for seed in range(24)], *folders)
    _save([colour_world.ood_picture(2 * seed) for seed in range(40)], root / "ood" / "validation")
    _save([colour_world.known("yellow", seed) for seed in range(40)], root / "ood" / "similar")
    _save([colour_world.ood_picture(2 * seed + 1) for seed in range(40)], root / "ood" / "other")
    _save([colour_world.ood_picture(101 + 2 * seed) for seed in range(3)], root / "new_images", prefix="unknown")
    _save([colour_world.known("red", 300 + seed) for seed in range(3)], root / "new_images", prefix="known")


def _save(images: list[Image.Image], *folders: Path, prefix: str = "image") -> None:
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        for index, image in enumerate(images):
            image.save(folder / f"{prefix}_{index}.png")


def _weights(disturbed: float) -> dict[str, torch.Tensor]:
    """Give the trained network's weights without its fourth class, a little disturbed for another network."""
    rng = torch.Generator().manual_seed(0)
    kept = {
        name: value[:3] if name.startswith("fc.") else value
        for name, value in colour_world.trained().state_dict().items()
    }
    return {
        name: (
            value + disturbed * torch.randn(value.shape, generator=rng) if value.is_floating_point() else value
        ).contiguous()
        for name, value in kept.items()
    }

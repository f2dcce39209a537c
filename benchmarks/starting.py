"""What it takes to show that a command has started, to judge one picture, and to decode one: python benchmarks/starting.py

The guard is that of torchvision's MobileNetV2 with random weights: they do not change the time. CPU seconds, user and system.
How far AUROCs move by how pictures are decoded and resized is told with its trained weights and photographs, where these are there.
"""

from __future__ import annotations

import io
import os
import pty
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torchvision import transforms

from engines import FETCHED, ROOT, SHARED
from idness.data import Preprocessing
from idness.data.decoding import decode_picture
from idness.detectors.detector import fit_many, score_many
from idness.detectors.registry import parse
from idness.metrics import auroc
from idness.networks.load import load_model
from idness.networks.split import SplitModel
from ratios import interleaved, report
from serving import MAKE, cpu_seconds, jpegs

SPEC, TURNS = "torchvision:mobilenet_v2", 4
COMMAND = "from idness.cli import run; run()"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
METHODS, SOME = ("msp", "ebo", "gen", "scale", "ash-s", "react", "dice", "knn"), 300
"""Whose AUROCs are compared, on so many photographs of each kind."""


def seconds(*words: str) -> float:
    """Run idness in a process of its own, and give its CPU seconds."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", COMMAND, *words], check=True, env=environment, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def one_picture(picture: bytes) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "picture.jpg").write_bytes(picture)
        subprocess.run([sys.executable, "-c", MAKE, SPEC, str(folder / "guard")], check=True)
        seconds("export", str(folder / "guard"), str(folder / "guard.onnx"))
        times: dict[str, list[float]] = {"guard": [], "guard.onnx": []}
        for _ in range(TURNS):
            for guard, found in times.items():
                found.append(seconds("score", str(folder / guard), str(folder / "picture.jpg"), "--json"))
    least = {name: min(found) for name, found in times.items()}
    return [
        {
            "work": f"idness score of one picture, {name}",
            "cpu ms": 1e3 * least[name],
            "ratio": least[name] / least["guard"],
            "spread": max(found) / min(found),
            "at most": 0.25 if name == "guard.onnx" else "–",
        }
        for name, found in times.items()
    ]


def first_progress(picture: bytes) -> list[dict[str, Any]]:
    """Tell the CPU seconds of commands, in a terminal, until they show anything."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "picture.jpg").write_bytes(picture)
        subprocess.run([sys.executable, "-c", MAKE, SPEC, str(folder / "guard")], check=True)
        commands = {
            "bench": ("--out", f"{folder}/out", "--cache", f"{folder}/cache"),
            "score": (f"{folder}/guard", f"{folder}/picture.jpg"),
            "calibrate": (SPEC, "--weights", "none", "--data", f"{folder}", "--out", f"{folder}/other"),
        }
        found = {what: [until_shown(what, *words) for _ in range(TURNS)] for what, words in commands.items()}
    return [
        {
            "work": f"idness {what}, until progress is shown",
            "cpu ms": 1e3 * min(turns),
            "ratio": "–",
            "spread": max(turns) / min(turns),
            "at most": "1500 ms",
        }
        for what, turns in found.items()
    ]


def until_shown(*words: str) -> float:
    """Start idness in a terminal and stop it when it shows anything; CPU seconds until then."""
    screen, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words], stdin=terminal, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    shown = b""
    while b"starting" not in shown:
        shown += os.read(screen, 4096)
    spent = cpu_seconds(process.pid)
    process.kill()
    process.wait()
    os.close(screen)
    return spent


def ways(resize: int) -> tuple[transforms.Compose, Preprocessing]:
    """Give the usual way from a picture to a tensor, and ours."""
    steps = [transforms.Resize(resize), transforms.CenterCrop(224), transforms.ToTensor()]
    usual = transforms.Compose([*steps, transforms.Normalize(MEAN, STD)])
    return usual, Preprocessing(resize=resize, crop=224, mean=MEAN, std=STD)


def decoding(pictures: list[bytes]) -> list[dict[str, Any]]:
    usual, how = ways(256)

    def by_torchvision() -> list[torch.Tensor]:
        return [usual(Image.open(io.BytesIO(data)).convert("RGB")) for data in pictures]

    def by_idness() -> list[torch.Tensor]:
        return [how(decode_picture(data)) for data in pictures]

    levels = 255 * torch.tensor(STD).view(3, 1, 1)
    gaps = [((ours - theirs) * levels).abs() for ours, theirs in zip(by_idness(), by_torchvision(), strict=True)]
    mean, most = float(torch.stack(gaps).mean()), float(torch.stack(gaps).max())
    assert most < 1.01, "at most one grey level"
    turns = [interleaved({"usual": by_torchvision, "ours": by_idness}, 1) for _ in range(5)]
    least = {name: min(turn[name] for turn in turns) for name in turns[0]}
    return [
        {
            "work": f"500 x 375 JPEG to a 224 x 224 tensor, {who}",
            "cpu ms": 1e3 * least[name] / len(pictures),
            "ratio": least[name] / least["usual"],
            "spread": max(turn[name] for turn in turns) / least[name],
            "at most": 0.6 if name == "ours" else "–",
            "grey levels apart, mean": mean if name == "ours" else 0.0,
        }
        for name, who in (("usual", "PIL and torchvision"), ("ours", "idness"))
    ]


def moved() -> str:
    """Say how far any AUROC on MobileNetV2 moves with our pixels; the photographs are 256 wide and high, so they are made smaller."""
    place = SHARED / "imagenet-sample"
    if not place.is_dir() or not (FETCHED / "packages").is_dir():
        return "AUROCs were not compared: their photographs are not here."
    network = load_model(f"{ROOT / 'tools' / 'imagenet_networks.py'}:mobilenet").eval()
    split = SplitModel(network, example=torch.rand(2, 3, 224, 224), engine="onnxruntime")
    usual, how = ways(232)
    files = {kind: sorted((place / kind).rglob("*.jpg"))[:: 1000 // SOME] for kind in ("id_val", "id_test", "textures")}
    aurocs, pixels = [], []
    for read in (
        lambda data: usual(Image.open(io.BytesIO(data)).convert("RGB")),
        lambda data: how(decode_picture(data)),
    ):
        sets = {kind: torch.stack([read(file.read_bytes()) for file in found]) for kind, found in files.items()}
        acts = {kind: split.extract(images.split(16)) for kind, images in sets.items()}
        detectors = [parse(name) for name in METHODS]
        fit_many(detectors, split.head, acts["id_val"])
        scores = zip(score_many(detectors, acts["id_test"]), score_many(detectors, acts["textures"]), strict=True)
        aurocs.append([auroc(inside, outside) for inside, outside in scores])
        pixels.append(torch.cat(list(sets.values())))
    most = 100 * max(abs(ours - theirs) for theirs, ours in zip(*aurocs, strict=True))
    apart = ((pixels[0] - pixels[1]) * 255 * torch.tensor(STD).view(3, 1, 1)).abs()
    count = sum(map(len, files.values()))
    return (
        f"MobileNetV2, {count} photographs of 256 x 256 made 232 wide: {float(apart.mean()):.4f} grey levels apart on average, at most"
        f" {float(apart.max()):.0f}; the AUROC of {', '.join(METHODS)} against textures moves by {most:.4f} points at most."
    )


def main() -> None:
    torch.set_num_threads(1)
    pictures = jpegs(24)
    rows = [*one_picture(pictures[0]), *decoding(pictures), *first_progress(pictures[0])]
    notes = [
        "An exported guard runs in onnxruntime; torch is not imported.",
        "torch resizes as Pillow does, but rounds some values to the next grey level.",
        moved(),
    ]
    report("starting", "Starting, judging one picture, and decoding one", rows, notes)


if __name__ == "__main__":
    main()

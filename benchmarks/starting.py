"""The time to show that a command has started, to judge one image, and to decode one: python benchmarks/starting.py

The guard uses torchvision's MobileNetV2 with random weights, which do not affect the time. CPU seconds, user and system.
"""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torchvision import transforms

from idness.data import Preprocessing
from idness.data.decoding import decode_picture
from ratios import cpu_of, interleaved, report
from serving import MAKE, cpu_seconds, jpegs

SPEC, TURNS = "torchvision:mobilenet_v2", 4
COMMAND = "from idness.cli import run; run()"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def one_picture(picture: bytes) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "picture.jpg").write_bytes(picture)
        subprocess.run([sys.executable, "-c", MAKE, SPEC, str(folder / "guard")], check=True)
        cpu_of("-c", COMMAND, "export", str(folder / "guard"), "-o", str(folder / "guard.onnx"))
        times: dict[str, list[float]] = {"guard": [], "guard.onnx": []}
        for _ in range(TURNS):
            for guard, found in times.items():
                found.append(cpu_of("-c", COMMAND, "score", str(folder / guard), str(folder / "picture.jpg"), "--json"))
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
    """Return the CPU seconds of commands in a terminal until they show anything."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "picture.jpg").write_bytes(picture)
        subprocess.run([sys.executable, "-c", MAKE, SPEC, str(folder / "guard")], check=True)
        commands = {
            "bench": ("cifar6", "--out", f"{folder}/out", "--cache", f"{folder}/cache"),
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
    """Start idness in a terminal, stop it when it shows anything, and return the CPU seconds until then."""
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


def decoding(pictures: list[bytes]) -> list[dict[str, Any]]:
    steps = [transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor()]
    usual = transforms.Compose([*steps, transforms.Normalize(MEAN, STD)])
    how = Preprocessing(resize=256, crop=224, mean=MEAN, std=STD)

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


def main() -> None:
    torch.set_num_threads(1)
    pictures = jpegs(24)
    rows = [*one_picture(pictures[0]), *decoding(pictures), *first_progress(pictures[0])]
    notes = [
        "An exported guard runs in onnxruntime; torch is not imported.",
        "torch resizes as Pillow does, but rounds some values to the next grey level.",
    ]
    report("starting", "Starting, judging one picture, and decoding one", rows, notes)


if __name__ == "__main__":
    main()

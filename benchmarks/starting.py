"""What it takes to judge one picture, from the start of the command, and to decode one: python benchmarks/starting.py

The guard is that of torchvision's MobileNetV2 with random weights: they do not change the time. CPU seconds, user and system.
"""

from __future__ import annotations

import io
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torchvision import transforms

from idness.data import Preprocessing, decode
from ratios import interleaved, report
from serving import MAKE, jpegs

SPEC, TURNS = "torchvision:mobilenet_v2", 4
COMMAND = "from idness.cli import run; run()"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


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


def decoding(pictures: list[bytes]) -> list[dict[str, Any]]:
    usual = transforms.Compose(
        [transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    )
    how = Preprocessing(resize=256, crop=224, mean=MEAN, std=STD)

    def by_torchvision() -> list[torch.Tensor]:
        return [usual(Image.open(io.BytesIO(data)).convert("RGB")) for data in pictures]

    def by_idness() -> list[torch.Tensor]:
        return [how(decode(data)) for data in pictures]

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
    rows = [*one_picture(pictures[0]), *decoding(pictures)]
    notes = [
        "An exported guard runs in onnxruntime; torch is not imported.",
        "Of what is cropped away nothing is resized, which rounds some values to the next grey level, none further.",
    ]
    report("starting", "Judging one picture from the start, and decoding one", rows, notes)


if __name__ == "__main__":
    main()

"""Peak memory of a benchmark with a few test images and with ten times as many: python benchmarks/memory.py"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from idness.data import embedded
from ratios import report

FEW, TIMES, TURNS = 1200, 10, 2
FEATURES = 1536
NETWORK = f"""
from torch import nn

def make():
    return nn.Sequential(nn.Conv2d(3, {FEATURES}, 8, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear({FEATURES}, 6))
"""
BENCH = """
[preprocessing]
mean = [0.4914, 0.4822, 0.4465]
std = [0.2023, 0.1994, 0.2010]
[id]
train = "train.npz"
val = "val.npz"
test = "test.npz"
[ood_val]
horse = "horse.npz"
[far]
many = "many.npz"
"""
RUN = """
import sys, torch
from idness.benchmark import Settings, run
torch.set_num_threads(1)
torch.manual_seed(0)
folder = sys.argv[1]
settings = Settings(cache=f"{folder}/cache", device="cpu", batch_size=64, any_accuracy=True, engine="eager")
found = run(f"{folder}/memory.toml", f"{folder}/net.py:make", settings)
print(found.peak_memory)
"""


def write(folder: Path, count: int) -> None:
    """Write a benchmark with `count` ID and OOD test images each: the embedded ones, then mirrored and shifted copies."""
    (folder / "net.py").write_text(NETWORK)
    (folder / "memory.toml").write_text(BENCH)
    for name, source in (("train", "id_train"), ("val", "id_val"), ("horse", "horse")):
        found = embedded.load(source)
        labels = found.labels if found.labels is not None else np.zeros(len(found), np.int64)
        np.savez(folder / f"{name}.npz", images=found.images[:500], labels=labels[:500])
    known = embedded.load("id_test")
    unknown = np.concatenate([embedded.load(name).images for name in ("mnist", "fashion-mnist", "quickdraw")])
    for name, images in (("test", known.images), ("many", unknown)):
        copies = [
            np.roll(images[:, :, :: 1 - 2 * (turn % 2)], turn, axis=1) for turn in range(-(-count // len(images)))
        ]
        np.savez(folder / f"{name}.npz", images=np.concatenate(copies)[:count])


def peak(count: int) -> int:
    """Run a benchmark in a separate process and return its peak memory."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), count)
        done = subprocess.run([sys.executable, "-c", RUN, folder], capture_output=True, text=True, check=True)
        return int(done.stdout)


def main() -> None:
    turns = [{count: peak(count) for count in (FEW, FEW * TIMES)} for _ in range(TURNS)]
    peaks = {count: [turn[count] for turn in turns] for count in turns[0]}
    table: list[dict[str, Any]] = [
        {
            "test images": 2 * count,
            "peak MB": round(max(found) / 1e6, 1),
            "their features, MB": round(2 * count * FEATURES * 4 / 1e6, 1),
            "ratio": max(found) / max(peaks[FEW]),
            "spread": max(found) / min(found),
        }
        for count, found in peaks.items()
    ]
    note = f"{TIMES} times the images, {table[1]['ratio']:.3f} times the peak; all methods, {FEATURES} features."
    report("memory", "Peak memory of a whole benchmark", table, [note])


if __name__ == "__main__":
    main()

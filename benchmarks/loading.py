"""What the training loader costs beside the bare work, whether a step waits for it, and its memory: python benchmarks/loading.py"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision.models import resnet18
from torchvision.transforms import v2

from idness.data import Preprocessing, folder_set
from idness.data.sets import select
from idness.training import StreamedSet, finetune
from idness.training.plan import Plan
from ratios import least, report

COUNT, TIMES, ROUNDS, WORKERS = 200, 8, 2, 2
EPOCHS, STEPS = 6, 100
"""Of the loader, whose workers start once for all epochs; and how many batches of 16 are loaded for the memory, few images or many."""
HOW = Preprocessing(resize=256, crop=224)
MEMORY = """
import sys
from pathlib import Path
from idness.data import folder_set
from loading import HOW, STEPS, WORKERS, held
from idness.training import StreamedSet
from idness.training.plan import Plan

data = StreamedSet(folder_set(Path(sys.argv[1])), HOW, WORKERS)
most = 0
for number, _ in enumerate(data.batches(Plan(len(data), 16), 0, STEPS)):
    most = max(most, held()) if number % 5 == 0 else most
print(most)
"""


def held() -> int:
    """Give the memory of this process and its children, what they share counted once."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    mine = [os.getpid(), *(pid for pid, parent in parents.items() if parent == os.getpid())]
    total = 0
    for pid in mine:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def photographs(root: Path, count: int) -> Path:
    """Write soft random pictures of ImageNet's mean size as JPEG, in ten class folders; most are links to a few."""
    rng = np.random.default_rng(0)
    for number in range(count):
        place = root / f"class-{number % 10}" / f"{number}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        if number < 50:
            coarse = Image.fromarray(rng.integers(0, 256, (19, 25, 3), dtype=np.uint8))
            soft = np.asarray(coarse.resize((500, 375), Image.Resampling.BICUBIC), np.int16)
            noisy = np.clip(soft + rng.normal(0, 6, soft.shape), 0, 255).astype(np.uint8)
            Image.fromarray(noisy).save(place, quality=92)
        else:
            os.link(root / f"class-{number % 50 % 10}" / f"{number % 50}.jpg", place)
    return root


def seconds(work: Callable[[], None]) -> float:
    """Give the CPU seconds that some work takes in this process and in those that it starts and ends."""

    def used() -> float:
        both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(usage.ru_utime + usage.ru_stime for usage in both)

    before = used()
    work()
    return used() - before


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        root = photographs(Path(folder) / "few", COUNT)
        files = sorted(root.glob("*/*.jpg"))
        cut = v2.Compose([v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip(), v2.PILToTensor()])

        def decode() -> None:
            for file in files:
                Image.open(file).convert("RGB")

        def bare() -> None:
            for file in files:
                cut(Image.open(file).convert("RGB"))

        def loader() -> None:
            data = StreamedSet(folder_set(root), HOW, WORKERS)
            for _ in data.batches(Plan(COUNT, 40), 0, EPOCHS * COUNT // 40):
                pass

        ways = {"Pillow, decode only": decode, "Pillow and torchvision's crop, one loop": bare, "our loader": loader}
        fastest = least({name: [seconds(way) for _ in range(ROUNDS)] for name, way in ways.items()})
        fastest["our loader"] /= EPOCHS
        rows: list[dict[str, Any]] = [
            {"work": name, "images/s per core": COUNT / taken, "ratio": fastest[list(ways)[1]] / taken}
            for name, taken in fastest.items()
        ]
        began = time.perf_counter()
        data = StreamedSet(select(folder_set(root), {"rows": [0, 96]}), HOW, WORKERS)
        done = finetune(resnet18(num_classes=10), data, "plain", epochs=1, batch_size=16, lr=0.01, crops="resized")
        waited, whole = done.log[-1].waited, time.perf_counter() - began
        peaks = []
        for count in (COUNT, COUNT * TIMES):
            place = photographs(Path(folder) / f"of-{count}", count)
            words = [sys.executable, "-c", MEMORY, str(place)]
            found = subprocess.run(words, capture_output=True, text=True, check=True, cwd=Path(__file__).parent)
            peaks.append(int(found.stdout))
    notes = [
        f"The loader reads, decodes, cuts, flips and hands over {rows[2]['ratio']:.2f} times as many images per core as the bare loop"
        " (wanted: at least 0.9); 500 x 375 JPEG to 224 x 224.",
        f"A ResNet-18's steps waited for images {waited:.1%} of their time, with {WORKERS} workers ({whole:.0f} s in all).",
        f"{TIMES} times the images ({COUNT * TIMES:,}): {peaks[1] / peaks[0]:.3f} times the memory of training process and workers,"
        f" {peaks[0] / 1e6:.0f} and {peaks[1] / 1e6:.0f} MB (wanted: at most 1.10).",
    ]
    report("loading", "Loading training images", rows, notes)


if __name__ == "__main__":
    main()

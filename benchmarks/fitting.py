"""Memory and seconds of the statistics of `idness fit` as training sets grow: python benchmarks/fitting.py [IMAGES ...]

Features as wide as a ResNet-50's, 2,048, of 1,000 classes, made up as they are read; every statistic of every method is gathered, and
5,000 images are kept. Without numbers: 32,768 images and eight times as many. ImageNet's training set is 1281167.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from ratios import report

WIDTH, CLASSES, FEW, TIMES = 2048, 1000, 32_768, 8
RUN = f"""
import resource, sys, time
import torch
from idness.activations.source import Source
from idness.activations.store import SHARD, Shard
from idness.core.types import Activations, Head
from idness.selection.fitting import statistics_for, summary_of

torch.set_num_threads(1)
rng = torch.Generator().manual_seed(0)
head = Head(torch.randn({CLASSES}, {WIDTH}, generator=rng) / 45)
count = int(sys.argv[1])

def shards():
    for start in range(0, count, SHARD):
        size = min(SHARD, count - start)
        features = torch.randn(size, {WIDTH}, generator=rng).clamp_(min=0)
        labels = torch.randint(0, {CLASSES}, (size,), generator=rng)
        digests = torch.randint(0, 256, (size, 24), dtype=torch.uint8, generator=rng)
        yield Shard(Activations(features, head(features), labels), torch.arange(start, start + size), digests)

start = time.process_time()
for _ in shards():
    pass
making, start = time.process_time() - start, time.process_time()
found = summary_of(Source("made up", "id_train", count, shards), head, statistics_for()).summary
assert found.count == count
print(time.process_time() - start - making, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def main() -> None:
    counts = [int(word) for word in sys.argv[1:]] or [FEW, FEW * TIMES]
    rows: list[dict[str, Any]] = []
    for count in counts:
        done = subprocess.run([sys.executable, "-c", RUN, str(count)], capture_output=True, text=True, check=True)
        seconds, peak = (float(value) for value in done.stdout.split())
        rows.append(
            {
                "images": count,
                "peak MB": peak / 1e6,
                "ratio": peak / (1e6 * rows[0]["peak MB"]) if rows else 1.0,
                "their features, MB": count * WIDTH * 4 / 1e6,
                "cpu ms an image": 1e3 * seconds / count,
            }
        )
    notes = [
        "At most wanted: 2,000 MB, and a ratio of 1.1. Seconds without those that making up the features takes; one thread."
    ]
    report("fitting", f"Statistics of training images, D={WIDTH}, C={CLASSES}", rows, notes)


if __name__ == "__main__":
    main()

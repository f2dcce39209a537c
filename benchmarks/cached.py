"""A million cached rows scored by every method, against reading them once: python benchmarks/cached.py [ROWS]

The rows are 512 features and 10 logits each, as a ResNet-18 for CIFAR-10 gives them, in the shards of a feature store. Reading checks each
shard's hash, as a benchmark does. Every method stands at its defaults and has learned from 5,000 rows. CPU seconds, user and system, one
thread; the rows are read twice, before and after they are scored, which shows how far two turns differ.
"""

from __future__ import annotations

import as_command  # noqa: F401

# isort: split
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from idness.activations.store import FeatureStore
from idness.core.types import Activations, Head
from idness.data.activations import SHARD
from idness.detectors.detector import fit_many, score_many
from idness.detectors.registry import rows
from ratios import least, report

ROWS, TRAIN, WIDTH, CLASSES = 1_000_000, 5_000, 512, 10
NAMED = 12
"""How many of the dearest methods are listed; the others stand together."""


def activations(rng: torch.Generator, count: int, head: Head) -> Activations:
    """Make rows such as a ReLU leaves: half of them zero, each class with features of its own."""
    labels = torch.randint(CLASSES, (count,), generator=rng)
    values = (2 * head.weight[labels] + torch.randn(count, WIDTH, generator=rng)).clamp_(min=0)
    return Activations(values, head(values), labels)


def write(store: FeatureStore, rng: torch.Generator, head: Head, count: int) -> None:
    names = {}
    for start in range(0, count, SHARD):
        acts = activations(rng, min(SHARD, count - start), head)
        index, hashes = torch.arange(start, start + len(acts)), torch.zeros(len(acts), 24, dtype=torch.uint8)
        names[f"{start:064x}"] = store.put(f"{start:064x}", replace(acts, index=index, hashes=hashes))
    store.finish("rows", names, {})


def timed(work: Iterator[Any]) -> float:
    start = time.process_time()
    for _ in work:
        pass
    return time.process_time() - start


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    count = int(sys.argv[1]) if sys.argv[1:] else ROWS
    rng = torch.Generator().manual_seed(0)
    head = Head(torch.randn(CLASSES, WIDTH, generator=rng) / 8, torch.randn(CLASSES, generator=rng))
    detectors = rows()
    fit_many(list(detectors.values()), head, activations(rng, TRAIN, head), val=activations(rng, 1000, head))
    spent = dict.fromkeys(detectors, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        store = FeatureStore(folder)
        write(store, rng, head, count)
        reading = [timed(store.shards("rows"))]
        for shard in store.shards("rows"):
            for row, detector in detectors.items():
                start = time.process_time()
                score_many([detector], shard.acts)
                spent[row] += time.process_time() - start
        reading.append(timed(store.shards("rows")))
    read, total = least({"reading": reading})["reading"], sum(spent.values())
    dearest = sorted(spent, key=lambda row: -spent[row])
    listed = {row: spent[row] for row in dearest[:NAMED]}
    listed[f"the other {len(spent) - NAMED}"] = sum(spent[row] for row in dearest[NAMED:])
    table: list[dict[str, Any]] = [
        {"work": "reading and checking all rows once", "cpu s": read, "of reading": 1.0, "share of scoring": "–"},
        {"work": f"scoring by all {len(spent)} methods", "cpu s": total, "of reading": total / read, "share of scoring": 1.0},
    ]  # fmt: skip
    for row, seconds in listed.items():
        table.append({"work": row, "cpu s": seconds, "of reading": seconds / read, "share of scoring": seconds / total})
    first = sum(spent[row] for row in dearest[:3]) / total
    notes = [
        f"{count:,} rows of {WIDTH} features and {CLASSES} logits; of {TRAIN:,} more the methods have learned.",
        f"All methods together take {total / read:.1f} times what reading takes; {dearest[0]} takes {spent[dearest[0]] / total:.0%} of"
        f" that, the first three ({', '.join(dearest[:3])}) {first:.0%}.",
        "The rows were read in two turns, and scored once.",
    ]
    report("cached", "A million cached rows scored by every method", table, notes)


if __name__ == "__main__":
    main()

"""Times competing ways of doing the same work, turn by turn in one process, and reports ratios.

Machines are shared and noisy: a time means little, the ratio of two times taken side by side means something.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

K = TypeVar("K")
SPREADS: list[float] = []
"""The slowest turn by the fastest, of each way that was timed more than once in this process."""
RESULTS = Path(__file__).resolve().parents[1] / "results" / "speed"


def interleaved(ways: Mapping[str, Callable[[], Any]], repeats: int = 7) -> dict[str, float]:
    """Run each way in turn, `repeats` times over, and give the least seconds of each; the first round warms up.

    Seconds of this process on the CPU, not of the wall clock: what other processes take does not count.
    """
    times: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(repeats + 1):
        for name, way in ways.items():
            start = time.process_time()
            way()
            if round_:
                times[name].append(time.process_time() - start)
    return least(times)


def least(times: Mapping[K, Sequence[float]]) -> dict[K, float]:
    """Give the least seconds of each way; how far its turns differ goes into the report."""
    SPREADS.extend(max(values) / min(values) for values in times.values() if len(values) > 1)
    return {name: min(values) for name, values in times.items()}


def spread() -> dict[str, float]:
    """Say how far the turns of one way differ: the slowest by the fastest."""
    if not SPREADS:
        return {}
    return {"ways": len(SPREADS), "median": round(median(SPREADS), 3), "largest": round(max(SPREADS), 3)}


def processor() -> str:
    """Name the processor, and say whether it has instructions of 512 bits; by its kind alone where the system does not tell."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    found = re.search(r"^model name\s*: (.*)$", text, flags=re.MULTILINE)
    name = found[1].strip() if found else platform.machine()
    return f"{name} {'with' if ' avx512f ' in text else 'without'} AVX-512"


def report(name: str, title: str, rows: list[dict[str, Any]], notes: list[str] | None = None) -> None:
    """Print rows as a table and write them to results/speed."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in rows[0]:
        table.add_column(column, justify="left" if isinstance(rows[0][column], str) else "right")
    for row in rows:
        table.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()))
    console = Console(width=None if os.isatty(1) else 120)
    console.print(table)
    for note in notes or []:
        console.print(note)
    import numpy
    import torch

    machine = {"cores": os.cpu_count(), "processor": processor(), "python": platform.python_version()}
    versions = {"numpy": numpy.__version__, "torch": torch.__version__}
    if spread():
        console.print("the slowest turn by the fastest:", *(f"{key} {value}" for key, value in spread().items()))
    RESULTS.mkdir(parents=True, exist_ok=True)
    command = " ".join(["python", f"benchmarks/{name}.py", *sys.argv[1:]])
    content = {
        "command": command,
        "title": title,
        "rows": rows,
        "notes": notes or [],
        "spread of turns": spread(),
        "machine": machine,
        "versions": versions,
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    console.print(f"wrote results/speed/{name}.json")

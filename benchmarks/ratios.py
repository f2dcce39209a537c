"""Timing of alternative ways of doing the same work, in turns, and reporting of ratios.

Machines are shared and noisy, so absolute times mean little, unlike the ratio of two times measured side by side.
"""

from __future__ import annotations

import json
import os
import platform
import re
import resource
import subprocess
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
"""Ratio of the slowest to the fastest turn, for each way that was timed more than once in this process."""
ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "speed"
SHARED = Path(os.environ.get("IDNESS_SHARED", ROOT.parent / "shared" / "data"))
FETCHED = Path(os.environ.get("IDNESS_FETCHED", ROOT / ".data"))
"""Folders that are searched for real networks and images; benchmarks skip missing ones."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def interleaved(ways: Mapping[str, Callable[[], Any]], repeats: int = 7) -> dict[str, float]:
    """Run each way in turn, `repeats` times, and return the minimum seconds of each; the first round is a warm-up.

    CPU time of this process is measured rather than wall-clock time, so that other processes have little influence.
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
    """Return the minimum seconds of each way; the spread of its turns is recorded for the report."""
    SPREADS.extend(max(values) / min(values) for values in times.values() if len(values) > 1)
    return {name: min(values) for name, values in times.items()}


def cpu_of(*words: str, **environment: str) -> float:
    """Run Python in a separate process with one thread and return its CPU seconds, user and system."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], check=True, env=os.environ | ONE_THREAD | environment, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


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

    known = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), flags=re.MULTILINE)
    processor = known[1].strip() if known else platform.machine()
    machine = {"cores": os.cpu_count(), "processor": processor, "python": platform.python_version()}
    versions = {"numpy": numpy.__version__, "torch": torch.__version__}
    spread = {"median": median(SPREADS), "largest": max(SPREADS)} if SPREADS else {}
    console.print("the slowest turn by the fastest:", *(f"{key} {value:.3f}" for key, value in spread.items()))
    RESULTS.mkdir(parents=True, exist_ok=True)
    command = " ".join(["python", f"benchmarks/{name}.py", *sys.argv[1:]])
    content = {
        "command": command,
        "title": title,
        "rows": rows,
        "notes": notes or [],
        "spread of turns": spread,
        "machine": machine,
        "versions": versions,
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    console.print(f"wrote results/speed/{name}.json")

"""The embedded benchmark compared with earlier versions: python benchmarks/embedded.py

`idness bench` runs as for a user, from start to report, in a separate process with an empty cache, alternating with earlier commits of
this repository. CPU seconds (user and system) are measured with one thread, then wall-clock time with all threads: alone, and next to a
busy process of equal priority on each core.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import time
from io import BytesIO
from pathlib import Path
from typing import Any

from ratios import ROOT, cpu_of, least, report

BEFORE = {"slow": "ae24790", "before": "e39fa33"}
"""The last commits before the work on speed and before the package was restructured."""
TURNS = 3
COMMAND = "import idness.cli as cli; getattr(cli, 'run', cli.main)()"
"""The code that the installed command runs, in earlier versions and now."""


def bench(source: Path) -> float:
    """Run the embedded benchmark with the package of a tree and return its CPU seconds."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["bench", "cifar6", "--quiet", "--out", f"{folder}/out", "--cache", f"{folder}/cache"]
        return cpu_of("-c", COMMAND, *words, PYTHONPATH=str(source / "src"))


def beside(busy: int) -> float:
    """Run the embedded benchmark next to `busy` busy processes and return its wall-clock seconds."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    try:
        with tempfile.TemporaryDirectory() as folder:
            words = ["bench", "cifar6", "--quiet", "--out", f"{folder}/out", "--cache", f"{folder}/cache"]
            start = time.monotonic()
            subprocess.run([sys.executable, "-m", "idness", *words], check=True, capture_output=True)
            return time.monotonic() - start
    finally:
        for other in others:
            other.kill()


def earlier(folder: Path, commit: str) -> Path:
    """Unpack the package of an earlier commit and return its folder."""
    packed = subprocess.run(["git", "archive", commit, "src"], check=True, cwd=ROOT, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def main() -> None:
    names = {name: f"idness bench at {commit}" for name, commit in BEFORE.items()} | {"now": "idness bench now"}
    times: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        trees = {name: earlier(Path(folder) / name, commit) for name, commit in BEFORE.items()} | {"now": ROOT}
        for _ in range(TURNS):
            for name, tree in trees.items():
                times[name].append(bench(tree))
    fastest = least(times)
    rows: list[dict[str, Any]] = [
        {
            "what": what,
            "seconds": fastest[name],
            "ratio": fastest[name] / fastest["slow"],
            "to before": fastest[name] / fastest["before"],
            "spread": max(times[name]) / min(times[name]),
        }
        for name, what in names.items()
    ]
    cores = os.cpu_count() or 1
    clock = {busy: [beside(busy) for _ in range(2)] for busy in (0, cores)}
    places = {0: "alone", cores: f"beside {cores} busy processes"}
    rows += [
        {
            "what": f"by the clock, {places[busy]}",
            "seconds": min(found),
            "ratio": min(found) / min(clock[0]),
            "to before": "–",
            "spread": max(found) / min(found),
        }
        for busy, found in clock.items()
    ]
    report("embedded", "The embedded benchmark, from start to report", rows, [f"Least of {TURNS} turns."])


if __name__ == "__main__":
    main()

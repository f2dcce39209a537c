"""Where the seconds of the embedded benchmark go, and how many there are against an earlier state: python benchmarks/embedded.py

`idness bench` runs as a user runs it, start to page, in a process of its own with an empty cache, in turns with the same of an
earlier commit of this repository. Another run counts the seconds of each part. All seconds are those of the processor, user
and system, one thread.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

from ratios import RESULTS, least, report
from whole import PAPER

ROOT = Path(__file__).resolve().parents[1]
BEFORE = "ae24790"
"""The last commit before the work on speed."""
TURNS, WANTED = 3, 0.50
PARTS = {
    "imports": "torch, NumPy and ours, up to the first line of the run; matplotlib on the way to the page",
    "decoding": "images from the package, hashes of their pixels",
    "network": "the only pass over the images",
    "fit": "what methods learn from training images",
    "search": "options on validation images",
    "scores": "every method on every test set, and the curves over percentiles",
    "intervals": "metrics, error bars, paired tests, the answer",
    "report": "tables and the page with its figures",
    "rest": "opening the network, writing files",
}
COMMAND = "import idness.cli as cli; getattr(cli, 'run', cli.main)()"
"""What the installed command calls, earlier and now."""
PROFILED = """
import json, sys, time, threading
spent = {}
def count(part, owner, name, clock=time.process_time):
    inner = getattr(owner, name)
    def timed(*words, **more):
        start = clock()
        try:
            return inner(*words, **more)
        finally:
            spent[part] = spent.get(part, 0.0) + clock() - start
    setattr(owner, name, timed)
import idness.cli
from idness.benchmark import evaluate, runner
from idness.data import batches
from idness.selection import search
from idness.networks.split import SplitModel
from idness.report import tables
spent["imports"] = time.process_time()
import idness.report as page
from idness.report import page
spent["imports"] = time.process_time()
count("decoding", batches, "_read", time.thread_time)
count("network", SplitModel, "split")
count("fit", search, "fit_many")
count("choose", runner, "choose")
count("scores", evaluate.Scorer, "score")
count("intervals", runner, "evaluate")
count("intervals", runner, "conclude")
count("intervals", runner, "sweep_curves")
count("report", tables, "write_tables")
count("report", page, "write_html")
try:
    idness.cli.main()
except SystemExit as done:
    assert not done.code, done.code
spent["search"] = spent.pop("choose") - spent["fit"]
spent["rest"] = time.process_time() - sum(spent.values())
print(json.dumps(spent), file=sys.stderr)
"""


def bench(source: Path, code: str = COMMAND, *more: str) -> tuple[float, str]:
    """Run the embedded benchmark with the package of a tree; CPU seconds of the process, and the last line of its remarks."""
    environment = os.environ | {"PYTHONPATH": str(source / "src"), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        words = ["bench", "--quiet", "--out", f"{folder}/out", "--cache", f"{folder}/cache", *more]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-c", code, *words], check=True, env=environment, capture_output=True, text=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, (done.stderr.strip().splitlines() or [""])[-1]


def earlier(folder: Path) -> Path:
    """Unpack the package as it was."""
    packed = subprocess.run(["git", "archive", BEFORE, "src"], check=True, cwd=ROOT, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def profile() -> dict[str, float]:
    spent: dict[str, float] = json.loads(bench(ROOT, PROFILED)[1])
    return {part: spent.get(part, 0.0) for part in PARTS}


def write_profile(parts: dict[str, float], ratio: float, same: float, spread: float) -> None:
    total = sum(parts.values())
    lines = [
        "# Where the seconds of the embedded benchmark go",
        "",
        "`python benchmarks/embedded.py`: CPU seconds of `idness bench` on `cifar6`, one thread, an empty cache.",
        "",
        "| part | CPU s | share | what |",
        "|---|--:|--:|---|",
        *(f"| {part} | {spent:.1f} | {100 * spent / total:.0f} % | {PARTS[part]} |" for part, spent in parts.items()),
        f"| all | {total:.1f} | 100 % | |",
        "",
        f"The whole run takes {ratio:.2f} times what it took at {BEFORE}, before the work on speed, in turns with it; with the"
        f" {len(PAPER)} methods that it had then, {same:.2f} times (wanted: at most {WANTED:.2f}; turns of one of them differ by up to"
        f" {100 * (spread - 1):.0f} %).",
        "",
    ]
    (RESULTS / "profile.md").write_text("\n".join(lines))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        trees = {"before": earlier(Path(folder)), "now": ROOT}
        times: dict[str, list[float]] = {name: [] for name in (*trees, "same rows")}
        for _ in range(TURNS):
            for name, tree in trees.items():
                times[name].append(bench(tree)[0])
            times["same rows"].append(bench(ROOT, COMMAND, "--methods", ",".join(PAPER))[0])
    parts = profile()
    fastest = least(times)
    spreads = {name: max(values) / min(values) for name, values in times.items()}
    ratio, same = (fastest[name] / fastest["before"] for name in ("now", "same rows"))
    total = sum(parts.values())
    rows: list[dict[str, Any]] = [
        {"what": f"idness bench at {BEFORE}", "cpu s": fastest["before"], "ratio": 1.0, "spread": spreads["before"]},
        {"what": "idness bench now", "cpu s": fastest["now"], "ratio": ratio, "spread": spreads["now"]},
        {
            "what": f"idness bench now, of the {len(PAPER)} rows that it had",
            "cpu s": fastest["same rows"],
            "ratio": same,
            "spread": spreads["same rows"],
        },
    ]
    for part, spent in parts.items():
        rows.append({"what": f"of that: {part}", "cpu s": spent, "ratio": spent / total, "spread": "–"})
    write_profile(parts, ratio, same, max(spreads.values()))
    notes = [
        f"Least of {TURNS} turns. The whole benchmark takes {ratio:.2f} times what it took, with the methods that it had {same:.2f} times"
        f" (wanted: at most {WANTED:.2f})."
    ]
    report("embedded", "The embedded benchmark, start to page", rows, notes)


if __name__ == "__main__":
    main()

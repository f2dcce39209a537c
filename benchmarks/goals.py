"""The performance goals and the results: python benchmarks/goals.py

Writes results/speed/goals.md from the other files in that folder; `make speed` runs it last.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratios import RESULTS

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Goal:
    """A row of the table: the work, its file, the goal, and functions that find and judge the numbers."""

    work: str
    file: str
    wanted: str
    found: Callable[[Rows], list[float]]
    shown: str
    met: Callable[[list[float]], list[bool]] | None = None
    remark: str = ""
    of: tuple[str, ...] = ()
    """Names of the numbers, if one may meet the goal and another miss it."""

    def line(self) -> str:
        """Return the row of the table."""
        values, before = self.values(RESULTS), self.values(RESULTS / "before")
        verdict = "" if self.met is None else self._verdict(self.met(values))
        said = "; ".join(filter(None, (verdict, self.remark)))
        measured = " | ".join(self.shown.format(*each) if each else "–" for each in (before, values))
        return f"| {self.work} (`{self.file}.json`) | {self.wanted} | {measured} | {said} |"

    def values(self, folder: Path) -> list[float]:
        """Return the measured numbers; empty if an earlier run did not measure them."""
        return self.found(json.loads((folder / f"{self.file}.json").read_text())["rows"])

    def _verdict(self, met: list[bool]) -> str:
        if len(set(met)) == 1:
            return "met" if met[0] else "missed"
        each = zip(self.of, met, strict=True)
        return ", ".join(f"{'met' if fine else 'missed'} {where}" for where, fine in each)


def picked(name: str, *wanted: dict[str, Any]) -> Callable[[Rows], list[float]]:
    """Return a function that returns a column of the rows with the given values, one row for each set of values."""

    def find(rows: Rows) -> list[float]:
        found = []
        for words in wanted:
            fits = [all(str(word) in str(row.get(key)) for key, word in words.items()) for row in rows]
            [row] = [row for row, fit in zip(rows, fits, strict=True) if fit]
            found.append(float(row[name]))
        return found

    return find


def at_most(*limits: float) -> Callable[[list[float]], list[bool]]:
    """Return a function that compares numbers, rounded as shown, with their limits."""
    return lambda values: [round(value, 2) <= limit for value, limit in zip(values, limits, strict=False)]


def at_least(*limits: float) -> Callable[[list[float]], list[bool]]:
    return lambda values: [round(value, 2) >= limit for value, limit in zip(values, limits, strict=False)]


def whole(network: str, images: int, which: str) -> Callable[[Rows], list[float]]:
    engines = ("onnxruntime", "eager")
    wanted = ({"network": network, "images": images, "what": f"whole bench, {engine}, {which}"} for engine in engines)
    return picked("ratio", *wanted)


def served(name: str) -> Callable[[Rows], list[float]]:
    return picked(name, {"what": "ResNet-50"}, {"what": "MobileNetV2"})


ALL, PAPER = "all methods and options", "the 15 rows of the paper"
SMALL, LARGE = {"size": "D=512, C=100"}, {"size": "D=2048, C=1,000"}
GOALS = (
    Goal(
        "whole `bench`, all methods and options, MobileNetV2 224 px, 3,000 images, against the ordinary pass of batch 128",
        "whole", "at most 0.20 onnxruntime, 0.25 eager", whole("mobilenet", 3000, ALL), "{:.2f}, {:.2f}", at_most(0.2, 0.25),
    ),
    Goal("the same, 3,000 images, of the 15 rows of the paper", "whole", "", whole("mobilenet", 3000, PAPER), "{:.2f}, {:.2f}"),
    Goal(
        "whole `bench`, DenseNet-101 32 px", "whole", "at most 0.60", whole("densenet", 5000, ALL), "{:.2f} onnxruntime, {:.2f} eager",
        at_most(0.6, 0.6),
    ),
    Goal(
        "the embedded run against 0.1.0", "embedded", "at most 0.50",
        lambda rows: [row["ratio"] for row in rows if row["what"] == "idness bench now"], "{:.2f}", at_most(0.5), "15 rows then, now 36",
    ),
    Goal(
        "the embedded run against that before the restructuring", "embedded", "at most 1.15",
        lambda rows: [row["to before"] for row in rows if row["what"] == "idness bench now" and "to before" in row], "{:.2f}",
        at_most(1.15), "before, onnxruntime was chosen by measuring engines, which was removed",
    ),
    Goal(
        "the embedded run by the clock beside a busy process on each core, against alone", "embedded", "at most 2.5",
        lambda rows: [row["ratio"] for row in rows if "busy" in row["what"]], "{:.2f}", at_most(2.5),
    ),
    Goal(
        "500 x 375 JPEG to a 224 tensor against PIL and torchvision", "starting", "at most 0.6",
        picked("ratio", {"work": "224 tensor, idness"}), "{:.2f}", at_most(0.6),
        "the file says how far pixels differ",
    ),
    Goal(
        "`idness score` of one picture with `guard.onnx` against the torch guard, start to verdict", "starting", "at most 0.25",
        picked("ratio", {"work": "guard.onnx"}), "{:.2f}", at_most(0.25),
        "the torch guard takes longer than before: Python's exit and torchvision's import of torch._dynamo are no longer bypassed",
    ),
    Goal(
        "CPU until progress is shown: `bench`, `score`, `calibrate`", "starting", "at most 1.5 s",
        lambda rows: [row["cpu ms"] / 1e3 for row in rows if "until progress" in row["work"]], "{:.2f}, {:.2f}, {:.2f} s",
        at_most(1.5, 1.5, 1.5),
    ),
    Goal(
        "serving, 32 clients, images a second against the bare network at its best batch and engine", "serving", "at least 0.85",
        served("ratio"), "{:.2f} ResNet-50, {:.2f} MobileNetV2", at_least(0.85, 0.85),
        "a MobileNetV2's pass takes five times what unpacking its JPEG does, on the same core", ("on ResNet-50", "on MobileNetV2"),
    ),
    Goal(
        "one request when idle, its latency against one pass of batch 1", "serving", "at most 1.3",
        served("idle: latency of a request / of one pass"), "{:.2f} ResNet-50, {:.2f} MobileNetV2",
        at_most(1.3, 1.3), "as above", ("on ResNet-50", "on MobileNetV2"),
    ),
    Goal(
        "ASH-S against pytorch-ood, heads of 512 x 100 and 2,048 x 1,000", "peer", "at least 3 times as fast",
        picked("ratio", {"work": "ASH-S", **SMALL}, {"work": "ASH-S", **LARGE}), "{:.1f}, {:.1f}", at_least(3, 3),
        "code that multiplied only the kept features was removed, as for ReAct",
        ("on the small head", "on the large one"),
    ),
    Goal(
        "ReAct against pytorch-ood, the same heads", "peer", "at least 1.5 times as fast",
        picked("ratio", {"work": "ReAct", **SMALL}, {"work": "ReAct", **LARGE}), "{:.1f}, {:.1f}", at_least(1.5, 1.5),
        "most of either is the product with the weights",
        ("on the small head", "on the large one"),
    ),
    Goal("memory of `bench`, 10 times the images", "memory", "at most 1.1", lambda rows: [rows[-1]["ratio"]], "{:.2f}", at_most(1.1)),
)  # fmt: skip


def text(goals: Iterable[Goal]) -> str:
    machines: dict[str, list[str]] = {}
    for name in dict.fromkeys(goal.file for goal in GOALS):
        found = json.loads((RESULTS / f"{name}.json").read_text())["machine"]
        machines.setdefault(f"{found['cores']} cores of {found['processor']}", []).append(name)
    where = "; ".join(f"{machine} ({', '.join(files)})" for machine, files in machines.items())
    lines = [
        "# Goals of speed, and what was reached",
        "",
        "Made by `python benchmarks/goals.py` from the other files of this folder; `make speed` measures them all again. CPU seconds of one"
        f" thread, in turns within one run, on {where}. Each file"
        " says how far turns differ. Before: the same on the same machine before the package was restructured (`before/`).",
        "",
        "| work | wanted | before | now | |",
        "|---|--:|--:|--:|---|",
        *(goal.line() for goal in goals),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    (RESULTS / "goals.md").write_text(text(GOALS))
    print("wrote results/speed/goals.md")

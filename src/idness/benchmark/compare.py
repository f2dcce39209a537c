"""Comparison of the results of several networks or runs on the same images."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from idness.benchmark.answer import draw_fprs, row_ranks, too_few, without_interval
from idness.benchmark.results import Report, ood_weights
from idness.core.errors import InputError, OptionError
from idness.intervals import Difference, compare_runs, difference_of_draws, mean_auroc_difference
from idness.metrics import FPRS, LOWER, WITH_INTERVAL

DRAWS = 1000
"""Number of bootstrap draws, such that 25 draws lie beyond each end of a 95 % interval."""
TESTED = ("id_test", "near", "far")
"""Roles of the test sets."""
_SEED = re.compile(r"[-_.]?(?:seed|rng)[-_=]?\d+", re.IGNORECASE)

Runs = Mapping[str, Sequence[Report]]
"""The results to compare by name: one report each, or several that differ in the seed."""


@dataclass(frozen=True)
class Value:
    """The mean of a metric over runs and, if there are several, their standard deviation."""

    mean: float
    spread: float | None


@dataclass(frozen=True)
class Change:
    """The difference from the first result; `verdict` is empty if the interval contains zero or is missing."""

    value: float
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    verdict: Literal["", "better", "worse"] = ""


@dataclass(frozen=True)
class Line:
    """One method: the value in each result, and the change in all but the first."""

    row: str
    values: tuple[Value, ...]
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Block:
    """One metric on one group or set."""

    metric: str
    kind: str
    name: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Comparison:
    """The differences between results, by metric and set or group."""

    names: tuple[str, ...]
    runs: tuple[int, ...]
    recall: float
    blocks: tuple[Block, ...]
    notes: tuple[str, ...]


def gather(specs: Sequence[str]) -> dict[str, list[Report]]:
    """Return the results to compare, given folders or `results.json` files as `path` or `name=path,path,...`.

    Folders whose names differ only in a seed (`ish-seed0`, `ish-seed1`) are runs of the same result.
    """
    found: dict[str, list[Report]] = {}
    for spec in specs:
        name, equals, paths = spec.partition("=")
        if equals and not Path(spec).exists():
            if not name or not paths or name in found:
                raise OptionError(f"compare: must be name=folder,folder with a unique name, got {spec!r}")
            found[name] = [Report.load(path) for path in paths.split(",")]
        else:
            found.setdefault(_name_of(Path(spec), found), []).append(Report.load(spec))
    return found


def compare(runs: Runs) -> Comparison:
    """Compare results with the first one.

    Single results are compared by a paired test on the same images: DeLong for AUROC, bootstrap for FPR. Results with several seeds
    are compared by Welch's test on their means.

    Raises:
        InputError: if the results are of different images.
    """
    if len(runs) < 2:
        raise OptionError(
            "compare: needs at least two results; runs that differ only in the seed count as one unless named a=... b=..."
        )
    baseline, *others = runs
    reports = [report for some in runs.values() for report in some]
    first = reports[0]
    for name, report in ((name, report) for name, some in runs.items() for report in some):
        _check_same_data(baseline, first, name, report)
    rows = [row for row in first.methods if all(row in report.methods for report in reports)]
    if not rows:
        raise InputError("compare: the results have no method in common")
    columns = [("group", name, sets) for name, sets in first.benchmark.groups.items()]
    columns += [("set", name, [name]) for name in ood_weights(first)]
    tests = {name: _paired_test(runs[baseline], runs[name], rows) for name in others}

    def line(row: str, metric: str, kind: str, name: str, sets: Sequence[str]) -> Line:
        numbers = {
            run: [float(getattr(getattr(report.methods[row], f"{kind}s")[name], metric)) for report in some]
            for run, some in runs.items()
        }
        values = [Value(float(np.mean(n)), float(np.std(n, ddof=1)) if len(n) > 1 else None) for n in numbers.values()]
        changes = []
        for run in others:
            new, old = numbers[run], numbers[baseline]
            plain, seeds = float(np.mean(new) - np.mean(old)), min(len(new), len(old)) > 1
            found = compare_runs(new, old) if seeds else tests[run](row, metric, sets, plain)
            changes.append(Change(*found, verdict=verdict(metric, found)) if found else Change(plain))
        return Line(row, tuple(values), tuple(changes))

    blocks = tuple(
        Block(metric, kind, name, tuple(line(row, metric, kind, name, sets) for row in rows))
        for metric in WITH_INTERVAL
        for kind, name, sets in columns
    )
    counts = tuple(len(some) for some in runs.values())
    return Comparison(tuple(runs), counts, first.recall, blocks, tuple(_notes(runs, rows)))


def verdict(metric: str, change: Difference) -> Literal["", "better", "worse"]:
    """Return `better` or `worse` for a difference; empty if its interval contains zero."""
    if change.low <= 0 <= change.high:
        return ""
    return "better" if (change.value < 0) == (metric in LOWER) else "worse"


def _paired_test(
    old: Sequence[Report], new: Sequence[Report], rows: Sequence[str]
) -> Callable[[str, str, Sequence[str], float], Difference | None]:
    """Return a paired test, for two single results, of a method's difference in a metric over some sets.

    The test returns `None` if a result has several runs or no scores, or if there are too few images.
    """
    reports = [*new, *old]
    if len(reports) != 2 or not all(report.has_scores for report in reports):
        return lambda *_: None
    names = list(ood_weights(reports[0]))
    # With the same seed, the same images are drawn from both.
    draws = {str(metric): [draw_fprs(report, metric, rows, DRAWS) for report in reports] for metric in FPRS}

    def test(row: str, metric: str, sets: Sequence[str], difference: float) -> Difference | None:
        if metric == "auroc":
            one, other = (row_ranks(report, row, dict.fromkeys(sets, 1.0)) for report in reports)
            return mean_auroc_difference(one, other)
        if not {"id_test", *sets}.isdisjoint(too_few(reports[0], metric)):
            return None
        columns = [names.index(name) for name in sets]
        return difference_of_draws(difference, *(drawn[row][:, columns].mean(axis=1) for drawn in draws[metric]))

    return test


def _check_same_data(name_a: str, a: Report, name_b: str, b: Report) -> None:
    """Raise if results are of different images, listing all differences."""
    if a is b:
        return
    faults = []
    for what, one, other in (("recall", a.recall, b.recall), ("groups", a.benchmark.groups, b.benchmark.groups)):
        if one != other:
            faults.append(f"the {what} ({one} and {other})")
    tested_a, tested_b = ({k: v for k, v in report.sets.items() if v.role in TESTED} for report in (a, b))
    for name in dict.fromkeys([*tested_a, *tested_b]):
        if name not in tested_a or name not in tested_b:
            faults.append(f"{name} (only in {name_a if name in tested_a else name_b})")
        elif tested_a[name].sha256 != tested_b[name].sha256:
            faults.append(f"the images of {name} ({tested_a[name].images:,} and {tested_b[name].images:,})")
        elif a.has_scores and b.has_scores and not np.array_equal(a.scores.index(name), b.scores.index(name)):
            faults.append(f"the images skipped in {name}")
    if faults:
        raise InputError(f"compare: {name_a} and {name_b} must use the same data; these differ: {', '.join(faults)}")


def _notes(runs: Runs, rows: Sequence[str]) -> list[str]:
    """Return notes on other differences between the results, and on what is missing."""
    reports = [report for some in runs.values() for report in some]
    notes = []
    for what, read in (
        ("networks", lambda r: r.model.spec),
        ("preprocessing", lambda r: r.preprocessing),
        ("precision", lambda r: r.precision.get("used")),
        ("engine", lambda r: r.engine.get("used", "eager")),
        ("training or validation images", lambda r: {n: s.sha256 for n, s in r.sets.items() if s.role not in TESTED}),
    ):
        if any(read(report) != read(reports[0]) for report in reports):
            notes.append(f"the {what} differ")
    changed = [row for row in rows if any(r.methods[row].options != reports[0].methods[row].options for r in reports)]
    if changed:
        notes.append(f"the options differ, each chosen on its own network: {', '.join(changed)}")
    bare = [name for name, some in runs.items() if not all(report.has_scores for report in some)]
    if bare:
        notes.append(f"the differences of {', '.join(bare)} have no interval: tests need their scores.safetensors")
    if len(reports) == len(runs) and len({report.model.weights_sha256 for report in reports}) > 1:
        notes.append("each result is a single training run: the intervals do not cover the variation between seeds")
    notes += without_interval(reports[0])
    missing = {row for report in reports for row in report.methods} - set(rows)
    if missing:
        notes.append(f"omitted, not in every result: {', '.join(sorted(missing))}")
    return notes


def _name_of(path: Path, taken: Collection[str]) -> str:
    """Return the name of a folder without the seed; with its parents if the name is taken and has no seed."""
    folder = (path.parent if path.suffix == ".json" else path).resolve()
    plain = _SEED.sub("", folder.name)
    if plain != folder.name:
        return plain or folder.parent.name
    for start in range(len(folder.parts) - 1, 0, -1):
        name = "/".join(folder.parts[start:])
        if name not in taken:
            return name
    raise OptionError(f"compare: {folder.name} is given twice; name the results: a={path} b=...")

"""Compares results of several networks or runs that were measured on the same images."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from idness.benchmark.ranking import row_ranks, too_few, without_interval
from idness.benchmark.results import Report
from idness.core.errors import InputError, OptionError
from idness.intervals import Difference, compare_runs, difference_of_draws, fpr_draws, mean_auroc_difference
from idness.metrics import FPRS, WITH_INTERVAL

DRAWS = 1000
"""Bootstrap draws: the ends of a 95 % interval then rest on 25 draws each."""
TESTED = ("id_test", "near", "far")
"""The roles of the sets that results are measured on."""
_SEED = re.compile(r"[-_.]?(?:seed|rng)[-_=]?\d+", re.IGNORECASE)


@dataclass(frozen=True)
class Entrant:
    """Takes one side of a comparison: a result, or the results of one run with several seeds."""

    name: str
    reports: tuple[Report, ...]


@dataclass(frozen=True)
class Value:
    """Gives a metric of an entrant: its mean over the runs and, where there are several, their standard deviation."""

    mean: float
    spread: float | None


@dataclass(frozen=True)
class Change:
    """Says how far an entrant is from the first one, and whether that is for the better; no word where the interval holds zero.

    Where nothing can be tested, the plain difference stands alone.
    """

    value: float
    low: float | None
    high: float | None
    p_value: float | None
    verdict: Literal["", "better", "worse"]


@dataclass(frozen=True)
class Line:
    """Compares the entrants in one row: each one's value, and each further one's change."""

    row: str
    values: tuple[Value, ...]
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Block:
    """Compares the entrants in one metric on one group or set."""

    metric: str
    kind: str
    name: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Comparison:
    """Keeps all that sets some results apart, metric by metric and set by set."""

    names: tuple[str, ...]
    runs: tuple[int, ...]
    recall: float
    blocks: tuple[Block, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Give everything as plain values, for JSON."""
        return asdict(self)


def gather(specs: Sequence[str]) -> list[Entrant]:
    """Read what is to be compared.

    Args:
        specs: folders or `results.json` files, as `path` or `name=path,path,...`. Folders whose names differ in a seed
            only (`ish-seed0`, `ish-seed1`) are runs of one entrant.
    """
    found: dict[str, list[Report]] = {}
    for spec in specs:
        name, equals, paths = spec.partition("=")
        if equals and not Path(spec).exists():
            if not name or not paths or name in found:
                raise OptionError(
                    f"compare: an entrant is written name=folder,folder with a name of its own, got {spec!r}"
                )
            found[name] = [Report.load(path) for path in paths.split(",")]
        else:
            found.setdefault(_name_of(Path(spec), found), []).append(Report.load(spec))
    return [Entrant(name, tuple(reports)) for name, reports in found.items()]


def compare(entrants: Sequence[Entrant]) -> Comparison:
    """Put results side by side, with the differences from the first entrant.

    Single results differ by a paired test on the same images: DeLong for AUROC, bootstrap for FPR. Runs with several
    seeds differ by Welch's test on their means. Results of different images are refused.
    """
    if len(entrants) < 2:
        raise OptionError(
            f"compare: needs at least two results, got {len(entrants)}; seeds of one run count as one: name them a=... b=..."
        )
    first = entrants[0].reports[0]
    for entrant in entrants:
        for report in entrant.reports:
            _check_same_data(entrants[0].name, first, entrant.name, report)
    rows = [row for row in first.methods if all(row in r.methods for e in entrants for r in e.reports)]
    if not rows:
        raise InputError("compare: the results have no method in common")
    places = [("group", name, tuple(sets)) for name, sets in first.benchmark.groups.items()]
    places += [("set", name, (name,)) for _, _, sets in places for name in sets]
    tests = {entrant.name: _tester(entrants[0], entrant, rows, places) for entrant in entrants[1:]}
    blocks = tuple(
        Block(metric, kind, name, tuple(_line(entrants, row, metric, kind, name, tests) for row in rows))
        for metric in WITH_INTERVAL
        for kind, name, _ in places
    )
    runs = tuple(len(entrant.reports) for entrant in entrants)
    return Comparison(tuple(e.name for e in entrants), runs, first.recall, blocks, tuple(_notes(entrants, rows)))


def _line(
    entrants: Sequence[Entrant],
    row: str,
    metric: str,
    kind: str,
    name: str,
    tests: dict[str, Callable[[str, str, str], Difference | None]],
) -> Line:
    numbers = [[_read(report, row, metric, kind, name) for report in entrant.reports] for entrant in entrants]
    values = [Value(float(np.mean(some)), float(np.std(some, ddof=1)) if len(some) > 1 else None) for some in numbers]
    changes = []
    for entrant, some in zip(entrants[1:], numbers[1:], strict=True):
        seeds = len(some) > 1 and len(numbers[0]) > 1
        found = compare_runs(some, numbers[0]) if seeds else tests[entrant.name](row, metric, name)
        plain = Change(float(np.mean(some) - np.mean(numbers[0])), None, None, None, "")
        changes.append(plain if found is None else Change(*found, verdict=verdict(metric, found)))
    return Line(row, tuple(values), tuple(changes))


def verdict(metric: str, change: Difference) -> Literal["", "better", "worse"]:
    """Say whether a difference whose interval excludes zero is for the better, whichever way is up."""
    if change.low <= 0 <= change.high:
        return ""
    return "better" if (change.value < 0) == (metric in FPRS) else "worse"


def _tester(
    first: Entrant, other: Entrant, rows: Sequence[str], places: Sequence[tuple[str, str, tuple[str, ...]]]
) -> Callable[[str, str, str], Difference | None]:
    """Prepare paired tests between two single results; there are none where one side has several runs or no scores."""
    one, two = first.reports[0], other.reports[0]
    if len(first.reports) > 1 or len(other.reports) > 1 or not (one.has_scores and two.has_scores):
        return lambda row, metric, name: None
    sets = [name for kind, name, _ in places if kind == "set"]
    members = {name: list(names) for _, name, names in places}

    def scores(report: Report, row: str) -> tuple[Any, list[Any]]:
        return report.scores.of(row, "id_test"), [report.scores.of(row, name) for name in sets]

    draws = {
        str(metric): fpr_draws(
            {f"{side}/{row}": scores(report, row) for side, report in (("a", one), ("b", two)) for row in rows},
            metric,
            one.recall,
            draws=DRAWS,
        )
        for metric in FPRS
    }

    few: dict[str, dict[str, int]] = {metric: too_few(one, metric) for metric in FPRS}

    def test(row: str, metric: str, name: str) -> Difference | None:
        chosen = members[name]
        if metric in FPRS and any(each in few[metric] for each in ("id_test", *chosen)):
            return None
        if metric == "auroc":
            new_ranks, old_ranks = (row_ranks(report, row, dict.fromkeys(chosen, 1.0)) for report in (two, one))
            return mean_auroc_difference(new_ranks, old_ranks)
        columns = [sets.index(each) for each in chosen]
        new, old = (draws[metric][f"{side}/{row}"][:, columns].mean(axis=1) for side in ("b", "a"))
        means = [np.mean([getattr(r.methods[row].sets[each], metric) for each in chosen]) for r in (two, one)]
        return difference_of_draws(float(means[0] - means[1]), new, old)

    return test


def _read(report: Report, row: str, metric: str, kind: str, name: str) -> float:
    found = report.methods[row].groups if kind == "group" else report.methods[row].sets
    return float(getattr(found[name], metric))


def _check_same_data(name_a: str, a: Report, name_b: str, b: Report) -> None:
    """Refuse results that were not measured on the same images, and say all that differs."""
    if a is b:
        return
    faults = []
    if a.recall != b.recall:
        faults.append(f"the recall ({a.recall:g} and {b.recall:g})")
    if a.benchmark.groups != b.benchmark.groups:
        faults.append(f"the groups ({_groups(a)} and {_groups(b)})")
    tested_a, tested_b = ({k: v for k, v in report.sets.items() if v.role in TESTED} for report in (a, b))
    for name in dict.fromkeys([*tested_a, *tested_b]):
        if name not in tested_a or name not in tested_b:
            faults.append(f"{name} (only in {name_a if name in tested_a else name_b})")
        elif tested_a[name].sha256 != tested_b[name].sha256:
            faults.append(f"the images of {name} ({tested_a[name].images:,} and {tested_b[name].images:,})")
        elif a.has_scores and b.has_scores and not np.array_equal(a.scores.index(name), b.scores.index(name)):
            faults.append(f"the images skipped in {name}")
    if faults:
        raise InputError(
            f"compare: {name_a} and {name_b} were not measured on the same data; what differs: {', '.join(faults)}"
        )


def _notes(entrants: Sequence[Entrant], rows: Sequence[str]) -> list[str]:
    """Say what else differs between the entrants, and what was left out."""
    reports = [report for entrant in entrants for report in entrant.reports]
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
        notes.append(f"options differ, each chosen on its own network: {', '.join(changed)}")
    bare = [entrant.name for entrant in entrants if not all(report.has_scores for report in entrant.reports)]
    if bare:
        notes.append(
            f"differences of {', '.join(bare)} are plain numbers without an interval: scores.safetensors, on which paired"
            " tests rest, is not beside results.json; idness bench writes it"
        )
    notes += without_interval(reports[0])
    missing = {row for report in reports for row in report.methods} - set(rows)
    if missing:
        notes.append(f"left out, not in every result: {', '.join(sorted(missing))}")
    return notes


def _name_of(path: Path, taken: dict[str, list[Report]]) -> str:
    """Name an entrant after its folder, without its seed; another run of the same name shares it only if a seed told them apart."""
    folder = (path.parent if path.suffix == ".json" else path).resolve()
    plain = _SEED.sub("", folder.name)
    if plain != folder.name:
        return plain or folder.parent.name
    name, parts = folder.name, list(folder.parts[1:-1])
    while name in taken and parts:
        name = f"{parts.pop()}/{name}"
    if name in taken:
        raise OptionError(f"compare: {name} is given twice; name the entrants: a={path} b=...")
    return name


def _groups(report: Report) -> str:
    return "; ".join(f"{name}: {', '.join(sets)}" for name, sets in report.benchmark.groups.items())

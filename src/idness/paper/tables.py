"""The paper's tables as data, and where their numbers contradict each other."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any

from pydantic import TypeAdapter

from idness.core.errors import unknown_name

Pair = tuple[float, float]
"""FPR at 95 % recall, in the table's convention, and AUROC; both in percent, as printed."""
PRINTED = ("fpr", "auroc")
OTHER_FILES = ("archives.toml", "slips.toml", "sources.toml")
ROUNDING = 0.0101
"""The largest rounding error of a printed average: half a unit for each part, and rounding in between."""


@dataclass(frozen=True)
class PaperRow:
    """A printed row: a method, and perhaps the training of its network.

    `method` is written as for the command line, with the paper's options; `None` if idness does not have it. `cells` are by OOD set,
    `means` by group of sets, `spread` (plus-minus) by either; all in percent. `epochs` are original plus extended. `train` has the
    options of `idness train` for its network, and `recipe` their source.
    """

    name: str
    method: str | None = None
    cells: dict[str, Pair] = field(default_factory=dict)
    means: dict[str, Pair] = field(default_factory=dict)
    id_accuracy: float | None = None
    spread: dict[str, Pair] = field(default_factory=dict)
    training: str | None = None
    epochs: str | None = None
    weights: str | None = None
    train: str = ""
    recipe: str = ""


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper with its protocol.

    `where` is its place in the paper and `benchmark` the one with its sets. A table of `kind` `fpr-auroc` has rows, groups (the sets
    of each average) and `fpr`, the name of the FPR that it prints; one of `p-values` has their means by set in `values`. `detail`
    names the table with the single sets of this one.
    """

    name: str
    title: str
    where: str
    model: str
    benchmark: str
    kind: str
    rows: tuple[PaperRow, ...] = ()
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    fpr: str | None = None
    values: dict[str, float] = field(default_factory=dict)
    weights: str | None = None
    note: str = ""
    detail: str | None = None
    id: str | None = None

    @property
    def columns(self) -> list[str]:
        """The sets and groups in order: each group's sets, then its average."""
        if not self.groups:
            return list(dict.fromkeys(name for row in self.rows for name in row.means))
        listed: list[str] = []
        for group, members in self.groups.items():
            listed += [name for name in members if any(name in row.cells for row in self.rows)]
            listed.append(group)
        return listed


_TABLE = TypeAdapter(PaperTable)


@dataclass(frozen=True)
class Slip:
    """A place where the paper contradicts itself: `average` (not the mean of its parts), `disagreement` of tables, or `text`."""

    kind: str
    table: str = ""
    row: str = ""
    column: str = ""
    metric: str = ""
    printed: float = 0.0
    computed: float = 0.0
    other: str = ""
    there: float = 0.0
    note: str = field(default="", compare=False)


def names() -> list[str]:
    """List the tables."""
    folder = files("idness.paper")
    return sorted(
        entry.name.removesuffix(".toml")
        for entry in folder.iterdir()
        if entry.name.endswith(".toml") and entry.name not in OTHER_FILES
    )


def load(name: str) -> PaperTable:
    """Read one table by name."""
    if name not in names():
        raise unknown_name("table", name, names())
    return _TABLE.validate_python({"name": name, **_read(name)})


def listed_slips() -> list[Slip]:
    """Read the known slips."""
    return [Slip(**entry) for entry in _read("slips")["slips"]]


def find_slips() -> list[Slip]:
    """Find averages that are not the mean of their parts, and cells that two tables print differently."""
    tables = {name: load(name) for name in names()}
    found = [slip for table in tables.values() for slip in _wrong_averages(table)]
    for table in tables.values():
        if table.detail:
            found += _disagreements(table, tables[table.detail], {})
    for column, detail in (("CIFAR-10", "cifar10"), ("CIFAR-100", "cifar100")):
        found += _disagreements(tables["cifar"], tables[detail], {column: "average"})
    return found


def _wrong_averages(table: PaperTable) -> Iterator[Slip]:
    for row in table.rows:
        for group, members in table.groups.items():
            if group not in row.means or not all(name in row.cells for name in members):
                continue
            for place, metric in enumerate(PRINTED):
                mean = sum(row.cells[name][place] for name in members) / len(members)
                printed = row.means[group][place]
                if abs(mean - printed) > ROUNDING:
                    yield Slip("average", table.name, row.name, group, metric, printed, round(mean, 2))


def _disagreements(table: PaperTable, other: PaperTable, renamed: dict[str, str]) -> Iterator[Slip]:
    theirs = {row.name: row for row in other.rows}
    for row in table.rows:
        for column, pair in row.means.items():
            if renamed and column not in renamed:
                continue
            for place, metric in enumerate(PRINTED):
                there = theirs[row.name].means[renamed.get(column, column)][place]
                if pair[place] != there:
                    found = Slip("disagreement", table.name, row.name, column, metric, pair[place])
                    yield replace(found, other=other.name, there=there)


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((files("idness.paper") / f"{name}.toml").read_text(encoding="utf-8"))

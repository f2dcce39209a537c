"""Comparison of the paper's numbers with ours, cell by cell, as tables and as a page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from idness.benchmark.results import MethodResult
from idness.paper.datasets import DataSet
from idness.paper.tables import PRINTED, PaperTable, listed_slips
from idness.report.tables import Cell, Heading, Table, markdown

ACCURACY, P_VALUE = "id_accuracy", "mean_p"


@dataclass(frozen=True)
class Entry:
    """A number in the paper and the corresponding one of ours.

    `metric` is `fpr`, `auroc`, `id_accuracy` or `mean_p`, and `spread` is the paper's plus-minus. For a group, `sets` is the number of
    measured sets and of all sets in it; `theirs` is then the mean over the measured ones.
    """

    row: str
    column: str
    metric: str
    theirs: float
    ours: float | None = None
    sets: tuple[int, int] | None = None
    spread: float | None = None

    @property
    def difference(self) -> float | None:
        """Ours minus theirs."""
        return None if self.ours is None else self.ours - self.theirs

    @property
    def partial(self) -> bool:
        """Whether only some sets of a group were measured."""
        return self.sets is not None and self.sets[0] < self.sets[1]


@dataclass
class TableOutcome:
    """The outcome of reproducing one table, and the data used.

    `folder` is the folder of the benchmark's report, `notes` contains remarks for the reader, and `failed` has the rows that could not
    be run, with the reasons.
    """

    table: PaperTable
    entries: list[Entry] = field(default_factory=list)
    sets: list[DataSet] = field(default_factory=list)
    folder: str | None = None
    notes: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def measured(self) -> list[Entry]:
        """The entries that were measured."""
        return [entry for entry in self.entries if entry.ours is not None]

    @property
    def images(self) -> dict[str, tuple[int, int]]:
        """The number of images of each available set, and that of the protocol."""
        return {item.name: (item.found, item.expected or item.found) for item in self.sets if item.found is not None}

    @property
    def status(self) -> str:
        """Whether the table is reproduced completely, partly or not at all."""
        if not self.measured:
            return "not reproduced"
        whole = len(self.measured) == len(self.entries) and not any(entry.partial for entry in self.entries)
        return "complete" if whole and all(item.complete for item in self.sets) else "partial"

    @property
    def remarks(self) -> list[str]:
        """Remarks for the reader: notes, substitutes, rows that were not run, and numbers of images."""
        said = [*self.notes, *(f"{row}: not run: {reason}" for row, reason in self.failed.items())]
        others = [item for item in self.sets if item.substitute]
        said += [f"{item.name}: {item.substitute} instead of the paper's images" for item in others]
        counts = ", ".join(f"{name} {here:,} of {there:,}" for name, (here, there) in self.images.items())
        return [*said, f"images: {counts}"] if counts else said

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        gaps = [item for item in self.sets if not item.available]
        cells = [asdict(entry) for entry in self.entries]
        return {
            **{name: getattr(self.table, name) for name in ("title", "where", "fpr")},
            **{name: getattr(self, name) for name in ("status", "images", "notes", "failed")},
            "missing": [{"name": item.name, "size": item.size, "command": item.command} for item in gaps],
            "substitutes": {item.name: item.substitute for item in self.sets if item.substitute},
            "cells": [{key: cell[key] for key in cell if key == "ours" or cell[key] is not None} for cell in cells],
        }


def compare_table(
    table: PaperTable, results: Mapping[str, MethodResult], printed: PaperTable | None = None
) -> list[Entry]:
    """Return the comparison of every cell of a table with results by printed row name; `printed` is the table with its single sets."""
    singles = {row.method: row.cells for row in printed.rows} if printed is not None else {}
    entries: list[Entry] = []
    for row in table.rows:
        found = results.get(row.name)
        sets = {} if found is None else found.sets
        # The other table with single sets is for the network without further training.
        details = row.cells or (singles.get(row.method, {}) if row.training in (None, "none") else {})
        for column in table.columns:
            members = (column,) if column in row.cells else table.groups.get(column, ())
            here = [part for part in members if part.lower() in sets]
            some = 0 < len(here) < len(members)
            if some and not all(part in details for part in here):
                here = []  # there is no printed mean to compare the mean over some sets with
            for place, metric in enumerate(PRINTED):
                name = (table.fpr or "") if metric == "fpr" else "auroc"
                theirs = (row.cells.get(column) or row.means[column])[place]
                if here and some:  # compared with the paper's mean over the same sets
                    theirs = round(sum(details[part][place] for part in here) / len(here), 2)
                whole = column in row.cells or len(here) == len(members)
                spread = row.spread[column][place] if whole and column in row.spread else None
                ours = 100 * sum(getattr(sets[part.lower()], name) for part in here) / len(here) if here else None
                parts = None if column in row.cells else (len(here), len(members))
                entries.append(Entry(row.name, column, metric, theirs, ours, parts, spread))
        if row.id_accuracy is not None:
            shaped = None if found is None or found.id_accuracy_shaped is None else 100 * found.id_accuracy_shaped
            entries.append(Entry(row.name, "ID", ACCURACY, row.id_accuracy, shaped))
    return entries


def comparison_tables(outcome: TableOutcome) -> list[Table]:
    """Return tables of our numbers, theirs and the difference: FPR and AUROC by method and set, then ID accuracies and p-values."""
    seen: dict[tuple[str, str], dict[str, Entry]] = {}
    for entry in outcome.measured:
        seen.setdefault((entry.row, entry.column), {})[entry.metric] = entry
    rows = []
    for (row, column), found in seen.items():
        if pair := [found[metric] for metric in PRINTED if metric in found]:
            some = pair[0].sets if pair[0].partial else None
            shown = f"{column} ({some[0]} of {some[1]} sets)" if some else column
            rows.append([Cell(row), Cell(shown), *(cell for entry in pair for cell in _numbers(entry))])
    words = [Heading("method", words=True), Heading("set", words=True)]
    tables = [Table("FPR and AUROC", [*words, *_headings(_fpr(outcome.table)), *_headings("AUROC")], rows)]
    for metric, what in ((ACCURACY, "ID accuracy"), (P_VALUE, "mean p-value")):
        others = [entry for entry in outcome.measured if entry.metric == metric]
        rows = [[Cell(e.row if metric == ACCURACY else e.column), *_numbers(e)] for e in others]
        tables.append(Table(what, [Heading("", words=True), *_headings(what)], rows))
    return [table for table in tables if table.rows]


def printed_table(table: PaperTable) -> Table:
    """Return a table of the paper as it is printed."""
    if table.values:
        headings = [Heading("set", words=True), Heading("mean p-value")]
        return Table("As printed", headings, [[Cell(name), Cell(f"{p:.3f}")] for name, p in table.values.items()])
    headings = [Heading("method", words=True), *(Heading(column) for column in table.columns)]
    rows = []
    for row in table.rows:
        pairs = [row.cells.get(column) or row.means.get(column) for column in table.columns]
        rows.append([Cell(row.name), *(Cell(f"{pair[0]:.2f} / {pair[1]:.2f}" if pair else "") for pair in pairs)])
    return Table(f"{_fpr(table)} / AUROC as printed", headings, rows)


def missing(outcomes: Sequence[TableOutcome], *, commands: bool = True) -> Table | None:
    """Return a table of the missing data: the tables that need it, its size and, with `commands`, how to get it."""
    gaps: dict[str, list[tuple[str, DataSet]]] = {}
    for outcome in outcomes:
        for item in outcome.sets:
            if not item.available:
                gaps.setdefault(item.command, []).append((outcome.table.name, item))
    rows = []
    for command, same in gaps.items():
        columns = zip(*((item.name, name, item.size) for name, item in same), strict=True)
        rows.append([*(Cell(", ".join(dict.fromkeys(texts))) for texts in columns), Cell(command)])
    titles = ("missing", "needed by", "size", "how to get it")[: 4 if commands else 3]
    headings = [Heading(title, words=True) for title in titles]
    return Table("Missing data", headings, [row[: len(titles)] for row in rows]) if rows else None


def slips(outcomes: Sequence[TableOutcome]) -> Table:
    """Return a table of the paper's contradictions, in these tables and in its text."""
    asked = {"", *(outcome.table.name for outcome in outcomes)}
    found = [slip for slip in listed_slips() if slip.get("table", "") in asked]
    keys = ("table", "row", "note")
    rows = [[Cell(slip.get(key, "")) for key in keys] for slip in found]
    return Table("Where the paper contradicts itself", [Heading(key, words=True) for key in keys], rows)


@dataclass
class Reproduction:
    """The outcomes of all requested tables."""

    outcomes: list[TableOutcome]

    def tables(self, *, commands: bool = True) -> list[Table]:
        """Return the tables of all outcomes, of the missing data, and of the paper's contradictions."""
        found = []
        for outcome in self.outcomes:
            table = outcome.table
            parts = comparison_tables(outcome) or [printed_table(table)]
            parts[0].title = f"{table.name}: {table.title} ({table.where}): {outcome.status}. {parts[0].title}"
            parts[-1].notes += [*([table.note] if table.note else []), *outcome.remarks]
            found += parts
        gaps = missing(self.outcomes, commands=commands)
        return [*found, *([gaps] if gaps else []), slips(self.outcomes)]

    def to_json(self) -> str:
        """Return all numbers as JSON."""
        values = {outcome.table.name: outcome.to_dict() for outcome in self.outcomes}
        return json.dumps({"tables": values}, indent=1, allow_nan=False) + "\n"

    def to_markdown(self) -> str:
        """Return the page as Markdown."""
        return "\n".join(["# The paper, reproduced\n\n## Tables\n", *map(markdown, self.tables())])


def _fpr(table: PaperTable) -> str:
    return f"FPR ({'ID' if table.fpr == 'fpr_at_id_recall' else 'OOD'} positive)"


def _headings(what: str) -> list[Heading]:
    return [Heading(f"{what}\nours"), Heading("theirs"), Heading("diff")]


def _numbers(entry: Entry) -> list[Cell]:
    """Return the cells of our number, theirs and the difference."""
    digits = 3 if entry.metric == P_VALUE else 2
    spread = "" if entry.spread is None else f" ± {entry.spread:.{digits}f}"
    numbers = f"{entry.ours:.{digits}f}", f"{entry.theirs:.{digits}f}{spread}", f"{entry.difference:+.{digits}f}"
    return [Cell(number) for number in numbers]

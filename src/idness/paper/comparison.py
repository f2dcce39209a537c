"""Puts our numbers beside the paper's, number by number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from idness.benchmark.parts import MethodResult
from idness.paper.locate import Missing
from idness.paper.tables import PRINTED, Pair, PaperRow, PaperTable, listed_slips
from idness.report.tables import Cell, Heading, Table, markdown_lines


@dataclass(frozen=True)
class Entry:
    """Puts one number of the paper beside ours, by the row and column that it is printed in.

    `metric` is `fpr`, `auroc`, `id_accuracy` or `mean_p`, and `spread` the plus-minus that the paper prints. For a group, `parts`
    says over how many of how many sets we could measure; where not over all, `theirs` is the mean over the same ones.
    """

    row: str
    column: str
    metric: str
    theirs: float
    ours: float | None = None
    parts: tuple[int, int] | None = None
    spread: float | None = None

    @property
    def difference(self) -> float | None:
        """Ours minus theirs."""
        return None if self.ours is None else self.ours - self.theirs

    @property
    def partial(self) -> bool:
        """Whether a group has only some of its sets."""
        return self.parts is not None and self.parts[0] < self.parts[1]


@dataclass
class Outcome:
    """Tells how far one table was reproduced, with what data: of each set, how many images were there and how many the protocol has.

    `folder` is where the benchmark's own report was written; `notes` say what else must be known to read the entries, and `failed`
    which rows could not be run though their network was there, and why.
    """

    table: PaperTable
    entries: list[Entry] = field(default_factory=list)
    images: dict[str, tuple[int, int]] = field(default_factory=dict)
    missing: list[Missing] = field(default_factory=list)
    folder: str | None = None
    notes: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def measured(self) -> list[Entry]:
        """The entries that we have a number for."""
        return [entry for entry in self.entries if entry.ours is not None]

    @property
    def status(self) -> str:
        """Whether the table is whole, in part or not reproduced."""
        if not self.measured:
            return "not reproduced"
        whole = len(self.measured) == len(self.entries) and not any(entry.partial for entry in self.entries)
        return "whole" if whole and all(here >= there for here, there in self.images.values()) else "in part"

    @property
    def largest(self) -> float | None:
        """The largest difference of any entry."""
        return max((abs(entry.difference) for entry in self.entries if entry.difference is not None), default=None)

    def to_dict(self) -> dict[str, Any]:
        """Give the whole as plain values."""
        cells = [asdict(entry) for entry in self.entries]
        for cell in cells:
            parts = cell.pop("parts")
            if parts:
                cell["sets"] = list(parts)
            if cell["spread"] is None:
                del cell["spread"]
        return {
            "title": self.table.title,
            "where": self.table.where,
            "status": self.status,
            "fpr": self.table.fpr,
            "images": {name: list(pair) for name, pair in self.images.items()},
            "missing": [asdict(gap) for gap in self.missing],
            "notes": self.notes,
            "failed": self.failed,
            "cells": cells,
        }


def compare(table: PaperTable, results: Mapping[str, MethodResult], printed: PaperTable | None = None) -> list[Entry]:
    """Compare every cell of a table with what a benchmark found, by the row's printed name.

    `printed` is the table that has the single sets of this one.
    """
    entries: list[Entry] = []
    for row in table.rows:
        found = results.get(row.name)
        details = _details(row, printed)
        for column in table.columns:
            for place, metric in enumerate(PRINTED):
                entries.append(_entry(table, row, column, metric, place, found, details))
        if row.id_accuracy is not None:
            shaped = None if found is None else found.id_accuracy_shaped
            entries.append(Entry(row.name, "ID", "id_accuracy", row.id_accuracy, _percent(shaped)))
    return entries


def _details(row: PaperRow, printed: PaperTable | None) -> dict[str, Pair]:
    """Give the single sets of a row; those of another table only if they were measured on the same network."""
    if row.cells or printed is None or row.training not in (None, "none"):
        return row.cells
    return next((other.cells for other in printed.rows if other.method == row.method), {})


def _entry(
    table: PaperTable,
    row: PaperRow,
    column: str,
    metric: str,
    place: int,
    found: MethodResult | None,
    details: dict[str, Pair],
) -> Entry:
    name = (table.fpr or "") if metric == "fpr" else "auroc"
    spread = row.spread[column][place] if column in row.spread else None
    if column in row.cells:
        value = None if found is None or column.lower() not in found.sets else getattr(found.sets[column.lower()], name)
        return Entry(row.name, column, metric, row.cells[column][place], _percent(value), spread=spread)
    members = table.groups.get(column, ())
    here = [part for part in members if found is not None and part.lower() in found.sets]
    parts = (len(here), len(members))
    if found is None or not here:
        return Entry(row.name, column, metric, row.means[column][place], None, parts)
    ours = sum(getattr(found.sets[part.lower()], name) for part in here) / len(here)
    theirs = row.means[column][place]
    if len(here) < len(members):
        if not all(part in details for part in here):
            return Entry(row.name, column, metric, theirs, None, parts)
        # A mean over some sets can only be compared with the paper's over the same ones.
        theirs, spread = round(sum(details[part][place] for part in here) / len(here), 2), None
    return Entry(row.name, column, metric, theirs, _percent(ours), parts, spread)


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def tables(outcome: Outcome) -> list[Table]:
    """Make tables of what was measured: FPR and AUROC by method and set, then ID accuracies and p-values."""
    seen: dict[tuple[str, str], dict[str, Entry]] = {}
    for entry in outcome.measured:
        seen.setdefault((entry.row, entry.column), {})[entry.metric] = entry
    rows = [
        [Cell(row), Cell(column + _sets(found)), *_numbers(found.get("fpr")), *_numbers(found.get("auroc"))]
        for (row, column), found in seen.items()
        if "fpr" in found or "auroc" in found
    ]
    kind = "ID positive" if outcome.table.fpr == "fpr_at_id_recall" else "OOD positive"
    words = [Heading("method", words=True), Heading("set", words=True)]
    made = [Table("FPR and AUROC", [*words, *_headings(f"FPR ({kind})"), *_headings("AUROC")], rows)] if rows else []
    for metric, what in (("id_accuracy", "ID accuracy"), ("mean_p", "mean p-value")):
        others = [entry for entry in outcome.measured if entry.metric == metric]
        rows = [[Cell(e.row if metric == "id_accuracy" else e.column), *_numbers(e)] for e in others]
        made += [Table(what, [Heading("", words=True), *_headings(what)], rows)] if rows else []
    return made


def remarks(outcome: Outcome) -> list[str]:
    """Say what must be known to read the tables, which rows could not be run, and how many images there were."""
    counts = ", ".join(f"{name} {here:,} of {there:,}" for name, (here, there) in outcome.images.items())
    failed = [f"{row}: not run: {reason}" for row, reason in outcome.failed.items()]
    return [*outcome.notes, *failed, *([f"images: {counts}"] if counts else [])]


def missing(outcomes: Sequence[Outcome], *, commands: bool = True) -> Table | None:
    """Make one table of all that was not there: which tables need it, how large it is and, unless not wanted, what brings it."""
    gaps: dict[str, list[tuple[str, Missing]]] = {}
    for outcome in outcomes:
        for gap in outcome.missing:
            gaps.setdefault(gap.command, []).append((outcome.table.name, gap))
    rows = [
        [
            _each(gap.name for _, gap in same),
            _each(name for name, _ in same),
            _each(gap.size for _, gap in same),
            command,
        ]
        for command, same in gaps.items()
    ]
    words = ("missing", "needed by", "size", "what brings it")
    shown = len(words) if commands else len(words) - 1
    headings = [Heading(word, words=True) for word in words[:shown]]
    return Table("What is missing", headings, [[Cell(text) for text in row[:shown]] for row in rows]) if rows else None


def _each(texts: Iterable[str]) -> str:
    """Join texts that are lists themselves, each item once."""
    return ", ".join(dict.fromkeys(item for text in texts for item in text.split(", ")))


def slips(outcomes: Sequence[Outcome]) -> list[str]:
    """Say where the paper contradicts itself, in the tables at hand and in its text."""
    asked = {outcome.table.name for outcome in outcomes}
    return [
        f"{f'{slip.table}: ' if slip.table else ''}{f'{slip.row}: ' if slip.row else ''}{slip.note}"
        for slip in listed_slips()
        if not slip.table or slip.table in asked
    ]


def markdown(outcome: Outcome) -> str:
    """Write an outcome as Markdown."""
    table = outcome.table
    lines = [f"## {table.name}: {table.title}", "", f"{table.where} of the paper; {outcome.status}. {table.note}", ""]
    for made in tables(outcome):
        lines += [*markdown_lines(made), ""]
    lines += [f"- {line}" for line in remarks(outcome)]
    return "\n".join(lines) + "\n"


def _headings(what: str) -> list[Heading]:
    return [Heading(f"{what}\nours"), Heading("theirs"), Heading("diff")]


def _sets(found: Mapping[str, Entry]) -> str:
    """Mark a mean over some of its sets."""
    parts = next(iter(found.values())).parts
    return "" if parts is None or parts[0] == parts[1] else f" ({parts[0]} of {parts[1]} sets)"


def _numbers(entry: Entry | None) -> list[Cell]:
    """Write ours, theirs and the difference."""
    if entry is None or entry.ours is None or entry.difference is None:
        return [Cell("")] * 3
    digits = 3 if entry.metric == "mean_p" else 2
    return [
        Cell(f"{entry.ours:.{digits}f}"),
        Cell(f"{entry.theirs:.{digits}f}" + (f" ± {entry.spread:.{digits}f}" if entry.spread is not None else "")),
        Cell(f"{entry.difference:+.{digits}f}"),
    ]

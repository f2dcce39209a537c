"""Puts our numbers beside the paper's, cell by cell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from idness.benchmark.parts import MethodResult
from idness.paper.locate import Missing
from idness.paper.tables import Pair, Row, Table


@dataclass(frozen=True)
class Cell:
    """Is one number of the paper and ours.

    Args:
        row: the method, as printed.
        column: the set or group, as printed.
        metric: `fpr`, `auroc`, `id_accuracy` or `mean_p`.
        theirs: as printed, or the mean over the same sets where only some are there.
        ours: what we measured; none where it was not.
        parts: for a group, over how many of how many sets.
    """

    row: str
    column: str
    metric: str
    theirs: float
    ours: float | None = None
    parts: tuple[int, int] | None = None

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
    """Is one table, reproduced as far as the data goes.

    Args:
        table: the paper's.
        cells: ours beside theirs.
        images: how many images of each set were there, and how many the protocol has.
        missing: what was not there.
        folder: where the benchmark's own report was written.
        notes: what else must be known to read it.
    """

    table: Table
    cells: list[Cell] = field(default_factory=list)
    images: dict[str, tuple[int, int]] = field(default_factory=dict)
    missing: list[Missing] = field(default_factory=list)
    folder: str | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def measured(self) -> list[Cell]:
        """The cells that we have a number for."""
        return [cell for cell in self.cells if cell.ours is not None]

    @property
    def status(self) -> str:
        """Whether the table is whole, in part or not reproduced."""
        if not self.measured:
            return "not reproduced"
        whole = len(self.measured) == len(self.cells) and not any(cell.partial for cell in self.cells)
        return "whole" if whole and all(here >= there for here, there in self.images.values()) else "in part"

    @property
    def largest(self) -> float | None:
        """The largest difference of any cell."""
        return max((abs(cell.difference) for cell in self.cells if cell.difference is not None), default=None)

    def to_dict(self) -> dict[str, Any]:
        """Give the whole as plain values."""
        cells = [
            {"row": cell.row, "column": cell.column, "metric": cell.metric, "theirs": cell.theirs, "ours": cell.ours}
            | ({"sets": list(cell.parts)} if cell.parts else {})
            for cell in self.cells
        ]
        return {
            "title": self.table.title,
            "where": self.table.where,
            "status": self.status,
            "fpr": self.table.fpr,
            "images": {name: list(pair) for name, pair in self.images.items()},
            "missing": [{"name": gap.name, "size": gap.size, "command": gap.command} for gap in self.missing],
            "notes": self.notes,
            "cells": cells,
        }


def compare(table: Table, results: Mapping[str, MethodResult], printed: Table | None = None) -> list[Cell]:
    """Compare every cell of a table with what a benchmark found.

    Args:
        table: the paper's.
        results: by the row's printed name.
        printed: the table that has the single sets of this one.
    """
    cells: list[Cell] = []
    for row in table.rows:
        found = results.get(row.name)
        details = _details(row, printed)
        for column in table.columns:
            for place, metric in enumerate(("fpr", "auroc")):
                cells.append(_cell(table, row, column, metric, place, found, details))
        if row.id_accuracy is not None:
            shaped = None if found is None else found.id_accuracy_shaped
            cells.append(Cell(row.name, "ID", "id_accuracy", row.id_accuracy, _percent(shaped)))
    return cells


def _details(row: Row, printed: Table | None) -> dict[str, Pair]:
    if row.cells or printed is None:
        return row.cells
    return next((other.cells for other in printed.rows if other.method == row.method), {})


def _cell(
    table: Table, row: Row, column: str, metric: str, place: int, found: MethodResult | None, details: dict[str, Pair]
) -> Cell:
    name = (table.fpr or "") if metric == "fpr" else "auroc"
    if column in row.cells:
        value = None if found is None or column.lower() not in found.sets else getattr(found.sets[column.lower()], name)
        return Cell(row.name, column, metric, row.cells[column][place], _percent(value))
    members = table.groups.get(column, ())
    here = [part for part in members if found is not None and part.lower() in found.sets]
    parts = (len(here), len(members))
    if found is None or not here:
        return Cell(row.name, column, metric, row.means[column][place], None, parts)
    ours = sum(getattr(found.sets[part.lower()], name) for part in here) / len(here)
    theirs = row.means[column][place]
    if len(here) < len(members):
        if not all(part in details for part in here):
            return Cell(row.name, column, metric, theirs, None, parts)
        # A mean over some sets can only be compared with the paper's over the same ones.
        theirs = round(sum(details[part][place] for part in here) / len(here), 2)
    return Cell(row.name, column, metric, theirs, _percent(ours), parts)


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def pairs(outcome: Outcome) -> Iterator[tuple[str, str, Cell | None, Cell | None]]:
    """Yield row, column, FPR and AUROC cells of what was measured, in the table's order."""
    seen: dict[tuple[str, str], dict[str, Cell]] = {}
    for cell in outcome.measured:
        seen.setdefault((cell.row, cell.column), {})[cell.metric] = cell
    for (row, column), metrics in seen.items():
        if "fpr" in metrics or "auroc" in metrics:
            yield row, column, metrics.get("fpr"), metrics.get("auroc")


def markdown(outcome: Outcome) -> str:
    """Write an outcome as Markdown."""
    table = outcome.table
    lines = [f"## {table.name}: {table.title}", "", f"{table.where} of the paper; {outcome.status}. {table.note}", ""]
    listed = list(pairs(outcome))
    if listed:
        kind = "ID positive" if table.fpr == "fpr_at_id_recall" else "OOD positive"
        heading = ["method", "set", f"FPR ({kind}) ours", "theirs", "diff", "AUROC ours", "theirs", "diff"]
        lines += [_line(heading), "|---|---|" + "--:|" * 6]
        for row, column, fpr, auroc in listed:
            lines.append(_line([row, column + mark_of(fpr or auroc), *numbers(fpr), *numbers(auroc)]))
    for metric, title in (("id_accuracy", "ID accuracy"), ("mean_p", "mean p-value")):
        others = [cell for cell in outcome.measured if cell.metric == metric]
        if others:
            lines += ["", _line(["", f"{title} ours", "theirs", "diff"]), "|---|--:|--:|--:|"]
            lines += [_line([cell.row if metric == "id_accuracy" else cell.column, *numbers(cell)]) for cell in others]
    lines += ["", *(f"- {note}" for note in outcome.notes)]
    if outcome.images:
        counts = ", ".join(f"{name} {here:,} of {there:,}" for name, (here, there) in outcome.images.items())
        lines.append(f"- images: {counts}")
    lines += [f"- missing: {gap.name} ({gap.size}): `{gap.command}`" for gap in outcome.missing]
    return "\n".join(lines) + "\n"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def mark_of(cell: Cell | None) -> str:
    """Mark a mean over some of its sets."""
    if cell is None or cell.parts is None or not cell.partial:
        return ""
    return f" ({cell.parts[0]} of {cell.parts[1]} sets)"


def numbers(cell: Cell | None) -> list[str]:
    """Write ours, theirs and the difference."""
    if cell is None or cell.ours is None or cell.difference is None:
        return ["", "", ""]
    digits = 3 if cell.metric == "mean_p" else 2
    return [f"{cell.ours:.{digits}f}", f"{cell.theirs:.{digits}f}", f"{cell.difference:+.{digits}f}"]

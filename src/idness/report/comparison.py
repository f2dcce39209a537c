"""Comparisons of results as terminal tables, Markdown and an HTML page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from idness.benchmark.compare import Block, Comparison
from idness.core.files import OutputFolder
from idness.core.text import listed, percentage, points, sentence, shorten
from idness.metrics import FPRS, WITH_INTERVAL, meaning, title
from idness.report.page import render_page
from idness.report.tables import Cell, Heading, Table, markdown


def tables(
    comparison: Comparison, metrics: Sequence[str] = WITH_INTERVAL, kinds: Sequence[str] = ("group", "set")
) -> list[Table]:
    """Return one table per metric and group or set: the values of each result, and the differences from the first."""
    return [_table(comparison, block) for block in comparison.blocks if block.metric in metrics and block.kind in kinds]


def legend(comparison: Comparison) -> list[str]:
    """Return an explanation of the numbers."""
    several = [shorten(name) for name, runs in zip(comparison.names, comparison.runs, strict=True) if runs > 1]
    changes = [change for block in comparison.blocks for line in block.lines for change in line.changes]
    tested = any(change.low is not None for change in changes)
    how = "with 95 % intervals; ✓ better and ✗ worse if the interval excludes zero"
    how = how if tested else "without intervals, their significance is unknown"
    lines = [f"Percent. Differences are from {shorten(comparison.names[0])}, in points, {how}."]
    if tested and len(several) < len(comparison.names):
        lines.append("Paired tests on the same images: DeLong for AUROC, bootstrap for FPR.")
    if several:
        lines.append(f"Mean ± standard deviation over seeds for {listed(several)}; compared by Welch's test.")
    if 0 < len(several) < len(comparison.names):
        lines.append("There is no interval for one run against several; measure more seeds.")
    return [*lines, *(shorten(f"{sentence(note)}.", 400) for note in comparison.notes)]


def to_markdown(comparison: Comparison) -> str:
    """Return all tables as Markdown."""
    heading = f"# {' against '.join(shorten(name) for name in comparison.names)}\n"
    notes = "\n".join(f"- {line}" for line in legend(comparison)) + "\n"
    return "\n".join([heading, notes, *map(markdown, tables(comparison))])


def to_html(comparison: Comparison) -> str:
    """Return all tables as one self-contained page."""
    names, recall = " against ".join(shorten(name) for name in comparison.names), comparison.recall
    parts = [
        {
            "id": metric,
            "title": title(metric, recall),
            "meaning": sentence(meaning(metric, recall)),
            "groups": tables(comparison, [metric], ["group"]),
            "sets": tables(comparison, [metric], ["set"]),
        }
        for metric in dict.fromkeys(block.metric for block in comparison.blocks)
    ]
    return render_page(
        "compare.html",
        title=f"{names} – idness",
        nav=[("top", "Comparison"), *((part["id"], part["title"]) for part in parts)],
        panels=0,
        names=names,
        legend=legend(comparison),
        parts=parts,
    )


def write(comparison: Comparison, folder: str | os.PathLike[str]) -> list[Path]:
    """Write `compare.md` and `compare.html` into a folder."""
    return OutputFolder.of(folder).write({"compare.md": to_markdown(comparison), "compare.html": to_html(comparison)})


def _table(comparison: Comparison, block: Block) -> Table:
    lower = block.metric in FPRS
    first, *others = (shorten(name, 16) for name in comparison.names)
    best: Literal["ascending", "descending"] = "ascending" if lower else "descending"
    names = [first, *others, *(f"{name}\nminus {first}" for name in others)]
    rows = []
    for line in block.lines:
        top = (min if lower else max)(value.mean for value in line.values)
        cells = [Cell(shorten(line.row))]
        for value in line.values:
            spread = "" if value.spread is None else f" ± {percentage(value.spread)}"
            mark = "leads" if value.mean == top else ""
            cells.append(Cell(percentage(value.mean) + spread, mark, sort=f"{value.mean:.6f}"))
        for change in line.changes:
            text, sort, interval, hint = points(change.value), f"{change.value:.6f}", "", ""
            if change.low is not None and change.high is not None:
                interval, hint = f"{points(change.low)} to {points(change.high)}", f"p = {change.p_value:.2g}"
            cells.append(Cell(text, change.verdict, interval and f" [{interval}]", interval, sort, hint))
        rows.append(cells)
    headings = [Heading("method", best="ascending", words=True), *(Heading(name, best=best) for name in names)]
    where = shorten(block.name) + (" OOD" if block.kind == "group" else "")
    return Table(f"{title(block.metric, comparison.recall)}, {where}", headings, rows)

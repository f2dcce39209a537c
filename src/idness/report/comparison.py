"""Shows a comparison of results: in the terminal, as Markdown, and as one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from idness.benchmark.compare import Block, Comparison, Line, Value
from idness.core.files import atomic_write
from idness.core.wording import listed, percent, points, sentence, shown
from idness.intervals import Difference
from idness.metrics import FPRS, WITH_INTERVAL, meaning, title
from idness.report.html import render_page
from idness.report.tables import Cell, Table, markdown

SHOWN = ("auroc", "fpr_at_id_recall")
LEVEL = 0.05


def tables(comparison: Comparison, metrics: Sequence[str] = SHOWN, kinds: Sequence[str] = ("group",)) -> list[Table]:
    """Make one table per metric and group or set: each entrant's value, and the differences from the first."""
    return [_table(comparison, block) for block in comparison.blocks if block.metric in metrics and block.kind in kinds]


def legend(comparison: Comparison) -> list[str]:
    """Say how to read the numbers."""
    several = [shown(name) for name, runs in zip(comparison.names, comparison.runs, strict=True) if runs > 1]
    lines = [
        f"Percent. Differences are from {shown(comparison.names[0])}, in points, with 95 % intervals;"
        " ✓ better and ✗ worse where the interval excludes zero."
    ]
    if len(several) < len(comparison.names):
        lines.append("Paired tests on the same images: DeLong for AUROC, bootstrap for FPR.")
    if several:
        lines.append(
            f"Mean ± standard deviation over seeds for {listed(several)}; seeds against seeds by Welch's test."
        )
    if 0 < len(several) < len(comparison.names):
        lines.append("One run against several has no interval: measure more seeds.")
    return [*lines, *(shown(f"{sentence(note)}.", 400) for note in comparison.notes)]


def to_markdown(comparison: Comparison) -> str:
    """Write every table as Markdown."""
    heading = f"# {' against '.join(shown(name) for name in comparison.names)}\n"
    notes = "\n".join(f"- {line}" for line in legend(comparison)) + "\n"
    every = tables(comparison, WITH_INTERVAL, ("group", "set"))
    return "\n".join([heading, notes, *(markdown(table) for table in every)])


def to_html(comparison: Comparison) -> str:
    """Write every table as one page that needs nothing else."""
    metrics = list(dict.fromkeys(block.metric for block in comparison.blocks))
    names = [shown(name) for name in comparison.names]
    return render_page(
        "compare.html",
        title=f"{' against '.join(names)} – idness",
        nav=[("top", "Comparison"), *((metric, title(metric, comparison.recall)) for metric in metrics)],
        panels=0,
        names=names,
        runs=comparison.runs,
        legend=legend(comparison),
        parts=[_part(comparison, metric) for metric in metrics],
    )


def write(comparison: Comparison, folder: Path) -> list[Path]:
    """Write `compare.md` and `compare.html` into a folder."""
    return [
        atomic_write(folder / "compare.md", to_markdown(comparison)),
        atomic_write(folder / "compare.html", to_html(comparison)),
    ]


def verdict(metric: str, change: Difference | None) -> str:
    """Mark a difference whose interval excludes zero: better or worse, whichever way is up."""
    if change is None or change.low <= 0 <= change.high:
        return ""
    return "✓" if (change.value < 0) == (metric in FPRS) else "✗"


def _table(comparison: Comparison, block: Block) -> Table:
    names = [shown(name, 16) for name in comparison.names]
    headings = ["method", *names, *(f"{name}\ndifference" for name in names[1:])]
    rows = []
    for line in block.lines:
        best = _best(block.metric, line)
        values = [Cell(_value(value), value.mean == best) for value in line.values]
        rows.append([Cell(shown(line.row)), *values, *(Cell(_change(block.metric, change)) for change in line.changes)])
    return Table(_title(comparison, block), headings, rows)


def _title(comparison: Comparison, block: Block) -> str:
    where = f"{shown(block.name)} OOD" if block.kind == "group" else shown(block.name)
    return f"{title(block.metric, comparison.recall)}, {where}"


def _best(metric: str, line: Line) -> float:
    means = [value.mean for value in line.values]
    return min(means) if metric in FPRS else max(means)


def _value(value: Value) -> str:
    return percent(value.mean) + ("" if value.spread is None else f" ± {percent(value.spread)}")


def _change(metric: str, change: Difference | None) -> str:
    if change is None:
        return "–"
    sign = verdict(metric, change)
    return f"{points(change.value)} [{points(change.low, 1)}, {points(change.high, 1)}]{' ' + sign if sign else ''}"


def _part(comparison: Comparison, metric: str) -> dict[str, Any]:
    blocks = [block for block in comparison.blocks if block.metric == metric]
    return {
        "id": metric,
        "title": title(metric, comparison.recall),
        "meaning": sentence(meaning(metric, comparison.recall)),
        "best": "ascending" if metric in FPRS else "descending",
        "blocks": [
            {
                "title": sentence(f"{shown(block.name)} OOD") if block.kind == "group" else shown(block.name),
                "kind": block.kind,
                "lines": [_html_line(metric, line) for line in block.lines],
            }
            for block in blocks
        ],
    }


def _html_line(metric: str, line: Line) -> dict[str, Any]:
    best = _best(metric, line)
    return {
        "row": shown(line.row),
        "numbers": [
            {"text": _value(value), "sort": f"{value.mean:.6f}", "mark": "best" if value.mean == best else ""}
            for value in line.values
        ],
        "changes": [
            {
                "text": "–" if change is None else points(change.value),
                "range": "" if change is None else f"{points(change.low)} to {points(change.high)}",
                "sort": "" if change is None else f"{change.value:.6f}",
                "sign": verdict(metric, change),
                "p": "" if change is None else f"p = {change.p_value:.2g}",
            }
            for change in line.changes
        ],
    }

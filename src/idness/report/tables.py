"""Results as tables: for the terminal, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from idness.benchmark.results import MethodResult, Metrics, Report
from idness.core.errors import OptionError
from idness.core.files import atomic_write
from idness.metrics import FPRS, NAMES, WITH_INTERVAL, meaning, title

if TYPE_CHECKING:
    from rich.table import Table as RichTable

WIDE = 100
LONG = 9
NARROW = 80


@dataclass
class Cell:
    """Is one entry: its text, and whether it is the best of its column."""

    text: str
    best: bool = False


@dataclass
class Table:
    """Is a table before it is written in some format: the first column names the method, the others hold numbers."""

    title: str
    headings: list[str]
    rows: list[list[Cell]]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Column:
    heading: str
    values: list[float | None]
    errors: list[float | None] | None = None
    higher: bool = True


def fpr_name(fpr: str) -> str:
    """Give the metric of a convention, `id` or `ood`."""
    name = f"fpr_at_{fpr}_recall"
    if name not in FPRS:
        raise OptionError(f"fpr must be id (ID is positive) or ood (OOD is positive), got {fpr!r}")
    return name


def summary(report: Report, fpr: str = "id", *, wide: bool = True) -> Table:
    """Make the main table: every method, AUROC and FPR by group, ID accuracy plain and shaped."""
    name, methods, columns = fpr_name(fpr), list(report.methods.values()), []
    at = f"{100 * report.recall:g} %\n{fpr.upper()} recall"
    for group in report.benchmark.groups:
        found = [method.groups[group] for method in methods]
        columns.append(_metric_column(f"{group}\nAUROC", found, "auroc", errors=True))
        columns.append(_metric_column(f"{group}\nFPR at {at}", found, name, errors=wide, higher=False))
    plain = report.id_accuracy
    if plain is not None:
        columns.append(_Column("ID acc.\nshaped", [method.id_accuracy_shaped for method in methods]))
    accuracy = "" if plain is None else f" · ID accuracy {100 * plain:.2f} %"
    title = f"{report.benchmark.title} · {report.model.spec}{accuracy}"
    notes = [
        f"FPR: {meaning(name, report.recall)} ({name}).",
        "Percent; ± half of a 95 % interval; best of each column in bold.",
    ]
    return _table(title, columns, report, notes)


def by_set(report: Report, metric: str = "auroc", sets: Sequence[str] | None = None, *, errors: bool = False) -> Table:
    """Make the table of one metric by set."""
    listed = sets or [name for names in report.benchmark.groups.values() for name in names]
    methods = list(report.methods.values())
    higher = metric not in FPRS
    columns = [
        _metric_column(name, [method.sets[name] for method in methods], metric, errors=errors, higher=higher)
        for name in listed
    ]
    return _table(f"{title(metric, report.recall)} by set, percent", columns, report, [])


def options(report: Report) -> Table:
    """Make the table of chosen options."""
    rows = []
    for row, method in report.methods.items():
        how = f"best of {len(method.tried)}" if method.chosen_by == "validation" else method.chosen_by
        value = "" if method.validation_auroc is None else f"{100 * method.validation_auroc:.2f}"
        rows.append([Cell(row), Cell(_chosen(method)), Cell(how), Cell(value)])
    notes = left_out(report.failed)
    notes += [
        f"{row}: setting dropped, {reason}" for row, method in report.methods.items() for reason in method.dropped
    ]
    return Table(_options_title(report), ["method", "options", "chosen", "val. AUROC"], rows, notes)


def _options_title(report: Report) -> str:
    searched = any(method.chosen_by == "validation" for method in report.methods.values())
    return (
        "options, chosen on validation images"
        if searched
        else "options, not searched: the benchmark has no validation sets"
    )


def markdown(table: Table) -> str:
    """Write a table as Markdown."""
    lines = [f"### {_md(table.title)}", "", "| " + " | ".join(map(_md, table.headings)) + " |"]
    lines.append("|---|" + "--:|" * (len(table.headings) - 1))
    for row in table.rows:
        cells = [f"**{_md(cell.text)}**" if cell.best else _md(cell.text) for cell in row]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *(f"{_md(note)}  " for note in table.notes), ""])


def latex(table: Table) -> str:
    """Write a table as LaTeX, for the booktabs package."""
    body = []
    for row in table.rows:
        cells = [rf"\textbf{{{_tex(cell.text)}}}" if cell.best else _tex(cell.text) for cell in row]
        body.append(" & ".join(cells) + r" \\")
    caption = " ".join(_tex(text) for text in (f"{table.title}.", *table.notes))
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{caption}}}",
        rf"\begin{{tabular}}{{l{'r' * (len(table.headings) - 1)}}}",
        r"\toprule",
    ]
    lines += [
        " & ".join(_tex(text) for text in table.headings) + r" \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def csv_text(report: Report) -> str:
    """Write every number as CSV: one line per method and set or group, values in [0, 1]."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    bounds = [f"{name}_{end}" for name in WITH_INTERVAL for end in ("low", "high")]
    writer.writerow(
        ["method", "label", "kind", "name", *NAMES, *bounds, "id_accuracy", "id_accuracy_shaped", "seconds"]
    )
    for row, method in report.methods.items():
        for kind, found in (("group", method.groups), ("set", method.sets)):
            for name, metrics in found.items():
                values = [getattr(metrics, key) for key in NAMES]
                limits = [value for key in WITH_INTERVAL for value in metrics.intervals.get(key, ("", ""))]
                accuracies = [
                    "" if value is None else value for value in (report.id_accuracy, method.id_accuracy_shaped)
                ]
                writer.writerow(
                    [
                        row,
                        method.label,
                        kind,
                        name,
                        *values,
                        *limits,
                        *accuracies,
                        round(sum(method.seconds.values()), 4),
                    ]
                )
    return buffer.getvalue()


def rich_table(table: Table) -> RichTable:
    """Make a table for the terminal."""
    from rich.markup import escape
    from rich.table import Table as RichTable

    made = RichTable(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    words = table.headings[1] == "options"
    for place, heading in enumerate(map(_broken, table.headings)):
        right = place > 0 and not (words and place < 3)
        made.add_column(escape(heading), justify="right" if right else "left", overflow="fold", no_wrap=place == 0)
    for row in table.rows:
        made.add_row(*(f"[bold]{escape(cell.text)}[/bold]" if cell.best else escape(cell.text) for cell in row))
    return made


def terminal_tables(report: Report, width: int, fpr: str = "id") -> list[Table]:
    """Choose and cut the tables so that they fit a terminal's width."""
    per_set = [
        table for metric in ("auroc", fpr_name(fpr)) for table in _cut_by_set(report, metric, max(width, NARROW))
    ]
    return [options(report), *per_set, summary(report, fpr, wide=width >= WIDE)]


def _cut_by_set(report: Report, metric: str, width: int) -> list[Table]:
    """Make one table by set, with error bars if there is room, or several if there is none for all sets."""
    whole = by_set(report, metric, errors=True)
    if _width(whole) <= width:
        return [whole]
    parts: list[list[str]] = [[]]
    for name in (name for listed in report.benchmark.groups.values() for name in listed):
        if parts[-1] and _width(by_set(report, metric, [*parts[-1], name])) > width:
            parts.append([])
        parts[-1].append(name)
    return [by_set(report, metric, part) for part in parts]


def _width(table: Table) -> int:
    """Give the width of a table in the terminal."""
    columns = zip(map(_broken, table.headings), *([cell.text for cell in row] for row in table.rows), strict=True)
    return sum(max(len(line) for text in column for line in text.split("\n")) + 2 for column in columns) - 2


def _broken(heading: str) -> str:
    """Break the long name of a set where it has a dash."""
    return heading.replace("-", "-\n") if len(heading) > LONG else heading


def write_tables(report: Report, folder: Path, fpr: str = "id") -> list[Path]:
    """Write results.csv, results.md and results.tex into a folder."""
    name = fpr_name(fpr)
    tables = [summary(report, fpr), by_set(report, "auroc"), by_set(report, name), options(report)]
    return [
        atomic_write(folder / "results.csv", csv_text(report)),
        atomic_write(folder / "results.md", "\n".join(markdown(table) for table in tables)),
        atomic_write(folder / "results.tex", "\n".join(latex(table) for table in tables)),
    ]


def _table(title: str, columns: Sequence[_Column], report: Report, notes: list[str]) -> Table:
    rows = [[Cell(name)] for name in report.methods]
    for column in columns:
        known = [round(100 * value, 2) for value in column.values if value is not None]
        best = (max if column.higher else min)(known) if known else None
        for place, value in enumerate(column.values):
            rows[place].append(_cell(value, None if column.errors is None else column.errors[place], best))
    return Table(title, ["method", *(column.heading for column in columns)], rows, notes)


def _cell(value: float | None, error: float | None, best: float | None) -> Cell:
    if value is None:
        return Cell("–")
    text = f"{100 * value:.2f}" + ("" if error is None else f" ±{100 * error:.1f}")
    return Cell(text, round(100 * value, 2) == best)


def _metric_column(
    heading: str, found: Sequence[Metrics], metric: str, *, errors: bool = False, higher: bool = True
) -> _Column:
    values: list[float | None] = [getattr(metrics, metric) for metrics in found]
    halves: list[float | None] = []
    for metrics in found:
        low, high = metrics.intervals.get(metric, (None, None))
        halves.append(None if low is None or high is None else (high - low) / 2)
    return _Column(heading, values, halves if errors else None, higher)


def _chosen(method: MethodResult) -> str:
    """Write the options that a search varies, or all that the label shows where there was no search."""
    if not method.tried:
        return method.label.partition("(")[2].removesuffix(")") or "–"
    shown = {key: method.options[key] for key in method.tried[0].options if key in method.options}
    return (
        ", ".join(f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in shown.items())
        or "–"
    )


def left_out(failed: Mapping[str, str]) -> list[str]:
    """Say which rows were left out and why, those of one reason together."""
    reasons: dict[str, list[str]] = {}
    for row, reason in failed.items():
        reasons.setdefault(reason, []).append(row)
    return [f"left out: {', '.join(listed)} ({reason})" for reason, listed in reasons.items()]


def _md(text: str) -> str:
    return text.replace("\n", " ").replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def _tex(text: str) -> str:
    text = text.replace("\n", " ")
    for char, safe in (
        ("\\", r"\textbackslash "),
        ("&", r"\&"),
        ("%", r"\%"),
        ("_", r"\_"),
        ("#", r"\#"),
        ("$", r"\$"),
        ("~", r"\textasciitilde "),
        ("^", r"\textasciicircum "),
    ):
        text = text.replace(char, safe)
    return text.replace("±", r"$\pm$").replace("·", r"$\cdot$").replace("–", "--")

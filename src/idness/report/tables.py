"""Results as tables: for the terminal, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from idness.benchmark.answer import best_first, setting
from idness.benchmark.parts import Answer, Metrics
from idness.benchmark.results import Report
from idness.core.errors import OptionError
from idness.core.files import atomic_write
from idness.core.wording import percent
from idness.metrics import FPRS, NAMES, WITH_INTERVAL, meaning, title
from idness.report.table import Cell, Column, Heading, Table, latex, markdown, of_columns, width

TABLES = ("results.csv", "results.md", "results.tex")
WIDE = 100
NARROW = 80
LEVEL = "≈ cannot be told apart from it"
ROWS = 20
"""Rows of the main table in the terminal: with headings, notes and the answer they fit a screen."""
ALWAYS = ("msp", "scale")
"""Rows that are shown however they do: what costs nothing, and what the package is built on."""


def fpr_name(fpr: str) -> str:
    """Give the metric of a convention, `id` or `ood`."""
    name = f"fpr_at_{fpr}_recall"
    if name not in FPRS:
        raise OptionError(f"fpr must be id (ID is positive) or ood (OOD is positive), got {fpr!r}")
    return name


def summary(report: Report, fpr: str = "id", *, wide: bool = True) -> Table:
    """Make the main table: every method, the best first, AUROC and FPR by group, ID accuracy plain and shaped."""
    name, rows, columns = fpr_name(fpr), best_first(report), []
    methods = [report.methods[row] for row in rows]
    at = f"at {100 * report.recall:g} %\n{fpr.upper()} recall"
    if report.answer is not None and len(report.benchmark.groups) > 1:
        columns.append(_mean_column(report.answer))
    for group in report.benchmark.groups:
        found = [method.groups[group] for method in methods]
        columns.append(_metric_column(Heading(f"{group}\nAUROC"), found, "auroc", errors=wide or not columns))
        columns.append(_metric_column(Heading(f"{group}\nFPR", at, "ascending"), found, name, errors=wide))
    accuracy = ""
    if report.id_accuracy is not None:
        accuracy = f" · ID accuracy {percent(report.id_accuracy)} %"
        columns.append(_column(Heading("ID acc.\nshaped"), [method.id_accuracy_shaped for method in methods]))
    notes = [
        f"FPR: {meaning(name, report.recall)} ({name}).",
        "Percent; ± half of a 95 % interval; "
        + ("best of each column in bold." if report.answer is None else f"★ best of its column, {LEVEL}."),
    ]
    heading = f"{report.benchmark.title} · {report.model.spec}{accuracy}"
    return of_columns(heading, [Cell(row) for row in rows], columns, notes)


def by_set(report: Report, metric: str = "auroc", sets: Sequence[str] | None = None, *, errors: bool = False) -> Table:
    """Make the table of one metric by set, the best row first."""
    columns, rows = [], best_first(report)
    for name in sets or _sets(report):
        found = [report.methods[row].sets[name] for row in rows]
        heading = Heading(name, best="ascending" if metric in FPRS else "descending")
        columns.append(_metric_column(heading, found, metric, errors=errors))
    return of_columns(f"{title(metric, report.recall)} by set, percent", [Cell(row) for row in rows], columns)


def options(report: Report) -> Table:
    """Make the table of chosen options."""
    rows, notes = [], left_out(report.failed)
    for row, method in ((row, report.methods[row]) for row in best_first(report)):
        how = f"best of {len(method.tried)}" if method.chosen_by == "validation" else method.chosen_by
        value = "" if method.validation_auroc is None else percent(method.validation_auroc)
        rows.append([Cell(row), Cell(setting(report, row) or "–"), Cell(how), Cell(value)])
        notes += [f"{row}: setting dropped, {reason}" for reason in method.dropped]
    searched = any(method.chosen_by == "validation" for method in report.methods.values())
    how = "chosen on validation images" if searched else "not searched: the benchmark has no validation sets"
    words = [Heading(name, words=True) for name in ("method", "options", "chosen")]
    return Table(f"options, {how}", [*words, Heading("val. AUROC")], rows, notes)


def csv_text(report: Report) -> str:
    """Write every number as CSV: one line per method and set or group, the best method first, values in [0, 1]."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    marks = [f"{name}_mark" for name in WITH_INTERVAL]
    bounds = [f"{name}_{end}" for name in WITH_INTERVAL for end in ("low", "high")]
    writer.writerow(
        ["method", "label", "rank", "use", "kind", "name", *NAMES, *bounds, *marks, "id_accuracy", "id_accuracy_shaped",
         "seconds"]
    )  # fmt: skip
    use = report.answer.use if report.answer else None
    for rank, row in enumerate(best_first(report), start=1):
        method = report.methods[row]
        accuracies = ["" if value is None else value for value in (report.id_accuracy, method.id_accuracy_shaped)]
        seconds = round(sum(method.seconds.values()), 4)
        for kind, found in (("group", method.groups), ("set", method.sets)):
            for name, metrics in found.items():
                values = [getattr(metrics, key) for key in NAMES]
                limits = [value for key in WITH_INTERVAL for value in metrics.intervals.get(key, ("", ""))]
                marked = [metrics.marks.get(key, "") for key in WITH_INTERVAL]
                place = [row, method.label, rank, int(row == use), kind, name]
                writer.writerow([*place, *values, *limits, *marked, *accuracies, seconds])
    return buffer.getvalue()


def terminal_tables(report: Report, columns: int, fpr: str = "id", *, sets: bool = False) -> list[Table]:
    """Choose and cut the tables so that they fit a terminal of so many columns.

    Args:
        report: the results.
        columns: the width.
        fpr: the convention of the FPR, `id` or `ood`.
        sets: whether to show every row, its options and its numbers by set, not only the best rows of the main table.
    """
    main = summary(report, fpr, wide=columns >= WIDE)
    if not sets:
        return [_shortened(report, main)]
    per_set = [
        table for metric in ("auroc", fpr_name(fpr)) for table in _cut_by_set(report, metric, max(columns, NARROW))
    ]
    return [options(report), *per_set, main]


def _shortened(report: Report, table: Table) -> Table:
    """Keep the best rows, the one to use, and those that everyone looks for."""
    wanted = {*ALWAYS, report.answer.use if report.answer else ""}
    asked = [row[0].text for row in table.rows if row[0].text in wanted]
    room = ROWS - sum(name not in {row[0].text for row in table.rows[:ROWS]} for name in asked)
    kept = [row for place, row in enumerate(table.rows) if place < room or row[0].text in wanted]
    hidden = len(table.rows) - len(kept)
    more = [f"{hidden} rows more are in results.md; --by-set prints them and the sets."] if hidden else []
    return replace(table, rows=kept, notes=[*table.notes, *left_out(report.failed), *more])


def write_tables(report: Report, folder: Path, fpr: str = "id") -> list[Path]:
    """Write the three files of tables into a folder."""
    name = fpr_name(fpr)
    tables = [summary(report, fpr), by_set(report, "auroc"), by_set(report, name), options(report)]
    answer = [] if report.answer is None else [report.answer.sentence, report.answer.cost, *report.answer.evidence]
    said = "\n\n".join(filter(None, (" ".join(answer[:2]), " ".join(answer[2:])))) + "\n\n" if answer else ""
    comment = "".join(f"% {line}\n" for line in answer if line)
    texts = (
        csv_text(report),
        said + "\n".join(markdown(table) for table in tables),
        comment + "\n".join(latex(table) for table in tables),
    )
    return [atomic_write(folder / name, text) for name, text in zip(TABLES, texts, strict=True)]


def left_out(failed: Mapping[str, str]) -> list[str]:
    """Say which rows were left out and why, those of one reason together."""
    reasons: dict[str, list[str]] = {}
    for row, reason in failed.items():
        reasons.setdefault(reason, []).append(row)
    return [f"left out: {', '.join(listed)} ({reason})" for reason, listed in reasons.items()]


def _sets(report: Report) -> list[str]:
    return [name for names in report.benchmark.groups.values() for name in names]


def _cut_by_set(report: Report, metric: str, room: int) -> list[Table]:
    """Make one table by set, with error bars if there is room, or several if there is none for all sets."""
    whole = by_set(report, metric, errors=True)
    if width(whole) <= room:
        return [whole]
    parts: list[list[str]] = [[]]
    for name in _sets(report):
        if parts[-1] and width(by_set(report, metric, [*parts[-1], name])) > room:
            parts.append([])
        parts[-1].append(name)
    return [by_set(report, metric, part) for part in parts]


def _mean_column(answer: Answer) -> Column:
    """Write the mean AUROC by which rows are ordered."""
    halves = [(high - low) / 2 for low, high in (answer.intervals[row] for row in answer.auroc)]
    marks = ["best" if row == answer.best else "tie" if row in answer.ties else "" for row in answer.auroc]
    return _column(Heading("mean\nAUROC", sorted=True), list(answer.auroc.values()), halves, marks)


def _metric_column(heading: Heading, found: Sequence[Metrics], metric: str, *, errors: bool) -> Column:
    ends = [metrics.intervals.get(metric) if errors else None for metrics in found]
    halves = [None if end is None else (end[1] - end[0]) / 2 for end in ends]
    marks = [metrics.marks.get(metric, "") for metrics in found]
    return _column(heading, [getattr(metrics, metric) for metrics in found], halves, marks)


def _column(
    heading: Heading, values: Sequence[float | None], halves: Sequence[float | None] = (), marks: Sequence[str] = ()
) -> Column:
    """Write numbers with half of their intervals; without marks of a test, all that print as the best one lead."""
    texts = [percent(value) for value in values]
    known = [float(text) for text, value in zip(texts, values, strict=True) if value is not None]
    best = f"{(min if heading.best == 'ascending' else max)(known):.2f}" if known else ""
    errors = ["" if half is None else f" ±{percent(half, 1)}" for half in halves or [None] * len(texts)]
    given = marks if any(marks) else ["leads" if text == best else "" for text in texts]
    return heading, [Cell(text + error, mark) for text, error, mark in zip(texts, errors, given, strict=True)]

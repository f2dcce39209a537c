"""One table model for terminal, Markdown, LaTeX and HTML, and the tables of a report."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from markupsafe import Markup

from idness.benchmark.answer import best_first, setting
from idness.benchmark.parts import Answer, Metrics
from idness.benchmark.results import TABLES, Report, results_folder
from idness.core.errors import OptionError
from idness.core.wording import percent
from idness.metrics import FPRS, NAMES, WITH_INTERVAL, meaning, title

if TYPE_CHECKING:
    from rich.table import Table as RichTable


LONG = 9
BEFORE = {"best": "★ ", "tie": "≈ "}
SIGNS = {"better": " ✓", "worse": " ✗"}
BOLD = ("best", "leads")
_LATEX = {
    "\\": r"\textbackslash ", "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde ", "^": r"\textasciicircum ", "\n": " ", "±": r"$\pm$", "·": r"$\cdot$", "–": "--", "−": "$-$",
    "✓": r"\checkmark", "✗": r"$\times$", "★": r"$\star$", "≈": r"$\approx$",
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """Keeps one entry of a table: its text, and what some forms add to it.

    Args:
        text: what every form prints.
        mark: `best` of its column, a `tie` with that, what `leads` its line, or what is `better` or `worse` than another.
        note: an interval or a setting; small on a page, in brackets elsewhere.
        sort: what a page sorts by where that is not the text.
        hint: what a page tells those who point at it.
        drawing: what a page draws below.
    """

    text: str
    mark: str = ""
    note: str = ""
    sort: str = ""
    hint: str = ""
    drawing: Markup = field(default_factory=Markup)

    def __str__(self) -> str:
        note = f" [{self.note}]" if self.note else ""
        return f"{BEFORE.get(self.mark, '')}{self.text}{note}{SIGNS.get(self.mark, '')}"


@dataclass(frozen=True)
class Heading:
    """Keeps the head of a column.

    Args:
        title: what stands in it; a line break is one where there is little room, and a space elsewhere.
        note: small print below it on a page.
        best: the direction that puts the best row on top; none where sorting makes no sense.
        sorted: whether the rows come in that order.
        words: whether the column holds words, not numbers.
    """

    title: str
    note: str = ""
    best: Literal["", "ascending", "descending"] = "descending"
    sorted: bool = False
    words: bool = False

    def __str__(self) -> str:
        return f"{self.title} {self.note}".strip()


@dataclass
class Table:
    """Keeps a table before it is written in some form; the first column names the rows."""

    title: str
    headings: list[Heading]
    rows: list[list[Cell]]
    notes: list[str] = field(default_factory=list)


Column = tuple[Heading, list[Cell]]


def of_columns(title: str, names: Sequence[Cell], columns: Sequence[Column], notes: Sequence[str] = ()) -> Table:
    """Make a table of the names of its rows and its columns."""
    rows = [[name, *(cells[place] for _, cells in columns)] for place, name in enumerate(names)]
    first = Heading("method", best="ascending", words=True)
    return Table(title, [first, *(heading for heading, _ in columns)], rows, list(notes))


def markdown(table: Table) -> str:
    """Write a table as Markdown, with its title and notes."""
    return "\n".join(
        [f"### {_md(table.title)}", "", *markdown_lines(table), "", *(f"{_md(note)}  " for note in table.notes), ""]
    )


def markdown_lines(table: Table) -> list[str]:
    """Write the lines of a table as Markdown, without its title and notes."""
    lines = [[_md(str(heading)) for heading in table.headings]]
    lines.append(["---" if heading.words else "--:" for heading in table.headings])
    lines += [[f"**{_md(str(cell))}**" if cell.mark in BOLD else _md(str(cell)) for cell in row] for row in table.rows]
    return [f"|{'|'.join(line)}|" if line is lines[1] else f"| {' | '.join(line)} |" for line in lines]


def latex(table: Table) -> str:
    """Write a table as LaTeX, for the booktabs and amssymb packages."""
    body = [
        " & ".join(rf"\textbf{{{_tex(str(cell))}}}" if cell.mark in BOLD else _tex(str(cell)) for cell in row) + r" \\"
        for row in table.rows
    ]
    caption = " ".join(_tex(text) for text in (f"{table.title}.", *table.notes))
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{caption}}}",
        rf"\begin{{tabular}}{{{''.join('l' if heading.words else 'r' for heading in table.headings)}}}",
        r"\toprule",
        " & ".join(_tex(str(heading)) for heading in table.headings) + r" \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def rich_table(table: Table) -> RichTable:
    """Make a table for the terminal."""
    from rich.markup import escape
    from rich.table import Table as RichTable

    made = RichTable(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    for place, heading in enumerate(table.headings):
        side: Literal["left", "right"] = "left" if heading.words else "right"
        made.add_column(escape(_broken(heading)), justify=side, overflow="fold", no_wrap=place == 0)
    for row in table.rows:
        made.add_row(*(f"[bold]{escape(str(cell))}[/bold]" if cell.mark in BOLD else escape(str(cell)) for cell in row))
    return made


def width(table: Table) -> int:
    """Give the width of a table in the terminal."""
    columns = zip(map(_broken, table.headings), *([str(cell) for cell in row] for row in table.rows), strict=True)
    return sum(max(len(line) for text in column for line in text.split("\n")) + 2 for column in columns) - 2


def _broken(heading: Heading) -> str:
    """Break the long name of a set where it has a dash."""
    text = str(heading)
    return text.replace("-", "-\n") if len(text) > LONG else text


def _md(text: str) -> str:
    return text.replace("\n", " ").replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def _tex(text: str) -> str:
    return "".join(_LATEX.get(char, char) for char in text)


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


def write_tables(report: Report, folder: str | os.PathLike[str], fpr: str = "id") -> list[Path]:
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
    return results_folder(folder).write(dict(zip(TABLES, texts, strict=True)))


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

"""One table model for terminal, Markdown, LaTeX and HTML, and the tables of a report."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from idness.benchmark.answer import setting
from idness.benchmark.results import TABLES, Metrics, Report, best_first, ood_weights, results_folder
from idness.core.errors import OptionError
from idness.core.text import percentage, shorten
from idness.metrics import FPRS, LOWER, SELECTIVE, meaning, title

if TYPE_CHECKING:
    from rich.table import Table as RichTable

SIGNS = {"best": ("★ ", ""), "tie": ("≈ ", ""), "better": ("", " ✓"), "worse": ("", " ✗")}
"""Text before and after a marked cell."""
BOLD = ("best", "leads")
LONG, COLUMN = 9, 11
"""Length from which a heading in the terminal is broken at dashes, and the width of its column."""
WIDE, NARROW = 100, 80
"""Width of a terminal from which all intervals are shown, and minimum width of tables by set, in characters."""
ROWS, ALWAYS = 18, ("msp", "ebo", "scale")
"""Number of rows of the main table in the terminal, and methods that are always shown: the baselines, and the package's own."""
_LATEX = {
    "\\": r"\textbackslash ", "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde ", "^": r"\textasciicircum ", "\n": " ", "±": r"$\pm$", "·": r"$\cdot$", "–": "--", "−": "$-$",
    "✓": r"\checkmark", "✗": r"$\times$", "★": r"$\star$", "≈": r"$\approx$",
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One cell of a table: its text, the text appended in text formats (`plain`), and note, sort key and tooltip for HTML.

    `mark` is `best` of its column, a `tie` with it, `leads` its row or column, `better` or `worse` than another, or the method to `use`.
    """

    text: str
    mark: str = ""
    plain: str = ""
    note: str = ""
    sort: str = ""
    hint: str = ""

    def __str__(self) -> str:
        before, after = SIGNS.get(self.mark, ("", ""))
        return f"{before}{self.text}{self.plain}{after}"


@dataclass(frozen=True)
class Heading:
    """The heading of a column of numbers, or of `words`; a line break in the title becomes a space except in the terminal.

    `best` is the direction that sorts the best row first, empty if the column cannot be sorted; `sorted` is whether it is sorted.
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
    """A table, independent of the output format; the first column names the rows."""

    title: str
    headings: list[Heading]
    rows: list[list[Cell]]
    notes: list[str] = field(default_factory=list)


Column = tuple[Heading, list[Cell]]
Number = tuple[float | None, tuple[float, float] | None, str]
"""A value, its interval and its mark."""


def markdown(table: Table) -> str:
    """Return a table as Markdown, with its title and notes."""
    rule = "|".join("---" if heading.words else "--:" for heading in table.headings)
    rows = [[_md(str(heading)) for heading in table.headings], *(_texts(row, _md, "**{}**") for row in table.rows)]
    first, *rest = (f"| {' | '.join(row)} |" for row in rows)
    notes = (f"{_md(note)}  " for note in table.notes)
    return "\n".join([f"### {_md(table.title)}", "", first, f"|{rule}|", *rest, "", *notes, ""])


def latex(table: Table) -> str:
    """Return a table as LaTeX, for the packages booktabs and amssymb."""
    caption = " ".join(_tex(text) for text in (f"{table.title}.", *table.notes))
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{caption}}}",
        rf"\begin{{tabular}}{{{''.join('l' if heading.words else 'r' for heading in table.headings)}}}",
        r"\toprule",
        " & ".join(_tex(str(heading)) for heading in table.headings) + r" \\",
        r"\midrule",
        *(" & ".join(_texts(row, _tex, r"\textbf{{{}}}")) + r" \\" for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def rich_table(table: Table) -> RichTable:
    """Return a table for the terminal."""
    from rich.markup import escape
    from rich.table import Table as RichTable

    made = RichTable(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    for place, heading in enumerate(table.headings):
        side: Literal["left", "right"] = "left" if heading.words else "right"
        text = str(heading)
        text = text.replace("-", "-\n") if len(text) > LONG else text
        made.add_column(escape(text), justify=side, overflow="fold", no_wrap=place == 0)
    for row in table.rows:
        made.add_row(*_texts(row, escape, "[bold]{}[/bold]"))
    return made


def _texts(row: Sequence[Cell], escape: Callable[[str], str], bold: str) -> list[str]:
    return [bold.format(escape(str(cell))) if cell.mark in BOLD else escape(str(cell)) for cell in row]


def _md(text: str) -> str:
    return text.replace("\n", " ").replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def _tex(text: str) -> str:
    return "".join(_LATEX.get(char, char) for char in text)


def fpr_name(fpr: str) -> str:
    """Return the metric of an FPR convention, `id` or `ood`."""
    name = f"fpr_at_{fpr}_recall"
    if name not in FPRS:
        raise OptionError(f"fpr must be id (ID is positive) or ood (OOD is positive), got {fpr!r}")
    return name


def summary(report: Report, fpr: str = "id", *, wide: bool = True) -> Table:
    """Return the main table: AUROC and FPR of every method by group, and its ID accuracy, best method first.

    `fpr` is the FPR convention, `id` or `ood`. Unless `wide`, text formats have intervals in the first column only.
    """
    name, rows, found, columns = fpr_name(fpr), best_first(report), report.answer, list[Column]()
    methods = [report.methods[row] for row in rows]
    at = f"at {100 * report.recall:g} %\n{fpr.upper()} recall"
    if found is not None and len(report.benchmark.groups) > 1:
        marks = ["best" if row == found.best else "tie" if row in found.ties else "" for row in rows]
        means = [(found.auroc[row], found.intervals[row], mark) for row, mark in zip(rows, marks, strict=True)]
        columns.append(_column(Heading("mean\nAUROC", sorted=True), means))
    for group in report.benchmark.groups:
        metrics = [method.groups[group] for method in methods]
        errors = wide or not columns
        columns.append(_column(Heading(f"{shorten(group)}\nAUROC"), _numbers(metrics, "auroc"), errors=errors))
        rate = Heading(f"{shorten(group)}\nFPR", at, "ascending")
        columns.append(_column(rate, _numbers(metrics, name), errors=wide))
    heading = f"{report.benchmark.title} · {report.model.spec}"
    if report.id_accuracy is not None:
        heading += f" · ID accuracy {percentage(report.id_accuracy)} %"
        columns.append(_column(Heading("ID acc.\nshaped"), [(each.id_accuracy_shaped, None, "") for each in methods]))
    signs = "★ best of its column, ≈ not significantly different from it." if found else "best of each column in bold."
    notes = [f"FPR: {meaning(name, report.recall)} ({name}).", f"Percent; ± half of a 95 % interval; {signs}"]
    return _by_method(report, heading, columns, notes)


def by_set(report: Report, metric: str = "auroc", sets: Sequence[str] | None = None) -> Table:
    """Return the table of one metric by data set, best method first."""
    methods = [report.methods[row] for row in best_first(report)]
    columns = []
    for name in ood_weights(report) if sets is None else sets:
        heading = Heading(shorten(name), best="ascending" if metric in LOWER else "descending")
        columns.append(_column(heading, _numbers([method.sets[name] for method in methods], metric), errors=False))
    return _by_method(report, f"{title(metric, report.recall)} by set, percent", columns)


def selective(report: Report) -> tuple[str, ...]:
    """Return the metrics of a classifier that rejects images; empty if the results have none."""
    known = all(metrics.aurc is not None for method in report.methods.values() for metrics in method.sets.values())
    return SELECTIVE if known else ()


def options(report: Report) -> Table:
    """Return the table of chosen options."""
    rows, notes = [], left_out(report.failed)
    for row, method in ((row, report.methods[row]) for row in best_first(report)):
        how = f"best of {len(method.tried)}" if method.chosen_by == "validation" else method.chosen_by
        value = "" if method.validation_auroc is None else percentage(method.validation_auroc)
        rows.append([Cell(shorten(row, 60)), Cell(setting(report, row) or "–"), Cell(how), Cell(value)])
        notes += [f"{row}: setting dropped, {reason}" for reason in method.dropped]
    searched = any(method.chosen_by == "validation" for method in report.methods.values())
    how = "chosen on validation images" if searched else "not searched: the benchmark has no validation sets"
    words = [Heading(name, best="ascending", words=True) for name in ("method", "options", "chosen")]
    return Table(f"options, {how}", [*words, Heading("val. AUROC")], rows, notes)


def csv_text(report: Report) -> str:
    """Return all numbers as CSV: one line per method and set or group, best method first, values in [0, 1]."""
    buffer, lines = io.StringIO(), report.lines()
    writer = csv.DictWriter(buffer, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return buffer.getvalue()


def terminal_tables(report: Report, columns: int, fpr: str = "id", *, sets: bool = False) -> list[Table]:
    """Return the tables for a terminal: the main one with the best methods, or with `sets` all methods, options and sets."""
    main = summary(report, fpr, wide=columns >= WIDE)
    if sets:
        by_sets = [_cut_by_set(report, metric, max(columns, NARROW)) for metric in ("auroc", fpr_name(fpr))]
        return [options(report), *by_sets[0], *by_sets[1], main]
    wanted = {*ALWAYS, report.answer.use if report.answer else ""}
    kept = [row for place, row in enumerate(main.rows) if place < ROWS or row[0].text in wanted]
    hidden = len(main.rows) - len(kept)
    more = [f"{hidden} more methods are in results.md; --by-set prints all methods and sets."] if hidden else []
    return [replace(main, rows=kept, notes=[*main.notes, *left_out(report.failed), *more])]


def write_tables(report: Report, folder: str | os.PathLike[str], fpr: str = "id") -> list[Path]:
    """Write `results.csv`, `results.md` and `results.tex` into a folder."""
    metrics = ("auroc", fpr_name(fpr), *selective(report))
    tables = [summary(report, fpr), *(by_set(report, metric) for metric in metrics), options(report)]
    answer = [] if report.answer is None else [report.answer.sentence, report.answer.cost, *report.answer.evidence]
    said = f"{' '.join(answer[:2])}\n\n{' '.join(answer[2:])}\n\n" if answer else ""
    comment = "".join(f"% {line}\n" for line in answer if line)
    texts = csv_text(report), said + "\n".join(map(markdown, tables)), comment + "\n".join(map(latex, tables))
    return results_folder(folder).write(dict(zip(TABLES, texts, strict=True)))


def left_out(failed: Mapping[str, str]) -> list[str]:
    """Return the methods that were not run, one line per reason."""
    reasons: dict[str, list[str]] = {}
    for row, reason in failed.items():
        reasons.setdefault(reason, []).append(row)
    return [f"not run: {', '.join(listed)} ({reason})" for reason, listed in reasons.items()]


def _cut_by_set(report: Report, metric: str, columns: int) -> list[Table]:
    """Return the table by set, split into several tables if the sets do not fit."""
    names, room = list(ood_weights(report)), columns - max(len(shorten(row, 60)) for row in report.methods)
    most = max(room // COLUMN, 1)
    return [by_set(report, metric, names[start : start + most]) for start in range(0, len(names), most)]


def _by_method(report: Report, title: str, columns: Sequence[Column], notes: Sequence[str] = ()) -> Table:
    """Return a table with one row per method, best first."""
    use, rows = report.answer.use if report.answer else None, []
    for place, row in enumerate(best_first(report)):
        mark, about = "use" if row == use else "", shorten(report.methods[row].about, 200)
        name = Cell(shorten(row, 60), mark, note=shorten(setting(report, row), 80), hint=about)
        rows.append([name, *(cells[place] for _, cells in columns)])
    first = Heading("method", best="ascending", words=True)
    return Table(title, [first, *(heading for heading, _ in columns)], rows, list(notes))


def _numbers(found: Sequence[Metrics], metric: str) -> list[Number]:
    return [(getattr(item, metric), item.intervals.get(metric), item.marks.get(metric, "")) for item in found]


def _column(heading: Heading, numbers: Sequence[Number], *, errors: bool = True) -> Column:
    """Return a column of percentages; with `errors`, text formats show half of each interval.

    Without marks of a test, all values that print the same as the best one lead.
    """
    texts = [percentage(value) for value, _, _ in numbers]
    known = [float(text) for text, (value, _, _) in zip(texts, numbers, strict=True) if value is not None]
    best = f"{(min if heading.best == 'ascending' else max)(known):.2f}" if known else ""
    tested = any(mark for _, _, mark in numbers)
    return heading, [
        Cell(
            text,
            mark if tested else "leads" if text == best else "",
            plain=f" ±{percentage((end[1] - end[0]) / 2, 1)}" if end and errors else "",
            note=f"{percentage(end[0], 1)} – {percentage(end[1], 1)}" if end else "",
            sort="" if value is None else f"{value:.6f}",
        )
        for text, (value, end, mark) in zip(texts, numbers, strict=True)
    ]

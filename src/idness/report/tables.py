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

from idness.benchmark.answer import best_first, setting, unnamed_setting
from idness.benchmark.results import TABLES, Metrics, Report, results_folder
from idness.core.errors import OptionError
from idness.core.text import percentage, shorten
from idness.metrics import FPRS, LOWER, NAMES, SELECTIVE, WITH_INTERVAL, meaning, title

if TYPE_CHECKING:
    from rich.table import Table as RichTable

SIGNS = {"best": ("★ ", ""), "tie": ("≈ ", ""), "better": ("", " ✓"), "worse": ("", " ✗")}
"""What stands before and after a marked cell in text."""
BOLD = ("best", "leads")
LONG = 9
"""Headings of the terminal that are longer than this are broken at dashes."""
WIDE, NARROW = 100, 80
"""Columns of a terminal from which all intervals are shown, and columns that tables by set may take at least."""
ROWS = 20
"""Rows of the main table in the terminal, which fit on a screen."""
ALWAYS = ("msp", "ebo", "scale")
"""Methods that are always shown: the baselines, and the one that the package is built on."""
_LATEX = {
    "\\": r"\textbackslash ", "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde ", "^": r"\textasciicircum ", "\n": " ", "±": r"$\pm$", "·": r"$\cdot$", "–": "--", "−": "$-$",
    "✓": r"\checkmark", "✗": r"$\times$", "★": r"$\star$", "≈": r"$\approx$",
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One entry of a table.

    Args:
        text: the text in every form.
        mark: `best` of its column, a `tie` with it, `leads` its row or column, `better` or `worse` than another, or the method to `use`.
        plain: what text forms append.
        note: small print of HTML.
        sort: the sort key of HTML; the text if empty.
        hint: the tooltip of HTML.
        drawing: a drawing below the text in HTML.
    """

    text: str
    mark: str = ""
    plain: str = ""
    note: str = ""
    sort: str = ""
    hint: str = ""
    drawing: Markup = field(default_factory=Markup)

    def __str__(self) -> str:
        before, after = SIGNS.get(self.mark, ("", ""))
        return f"{before}{self.text}{self.plain}{after}"


@dataclass(frozen=True)
class Heading:
    """The heading of a column.

    Args:
        title: the text; a line break is a space except in the terminal.
        note: small print below it.
        best: the direction that sorts the best row first; empty if the column cannot be sorted.
        sorted: whether the rows are in that order.
        words: whether the column contains words instead of numbers.
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
    """A table, independent of its form; the first column names the rows."""

    title: str
    headings: list[Heading]
    rows: list[list[Cell]]
    notes: list[str] = field(default_factory=list)


Column = tuple[Heading, list[Cell]]
Interval = tuple[float, float] | None


def markdown(table: Table) -> str:
    """Return a table as Markdown, with its title and notes."""
    return "\n".join(
        [f"### {_md(table.title)}", "", *markdown_lines(table), "", *(f"{_md(note)}  " for note in table.notes), ""]
    )


def markdown_lines(table: Table) -> list[str]:
    """Return the lines of a Markdown table, without its title and notes."""
    rows = [[f"**{_md(str(cell))}**" if cell.mark in BOLD else _md(str(cell)) for cell in row] for row in table.rows]
    rule = "|".join("---" if heading.words else "--:" for heading in table.headings)
    first, *rest = (f"| {' | '.join(row)} |" for row in [[_md(str(heading)) for heading in table.headings], *rows])
    return [first, f"|{rule}|", *rest]


def latex(table: Table) -> str:
    """Return a table as LaTeX, for the packages booktabs and amssymb."""
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
    """Return a table for the terminal."""
    from rich.markup import escape
    from rich.table import Table as RichTable

    made = RichTable(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    for place, heading in enumerate(table.headings):
        side: Literal["left", "right"] = "left" if heading.words else "right"
        made.add_column(escape(_broken(heading)), justify=side, overflow="fold", no_wrap=place == 0)
    for row in table.rows:
        made.add_row(*(f"[bold]{escape(str(cell))}[/bold]" if cell.mark in BOLD else escape(str(cell)) for cell in row))
    return made


def _width(table: Table) -> int:
    """Return the width of a table in the terminal."""
    columns = zip(map(_broken, table.headings), *([str(cell) for cell in row] for row in table.rows), strict=True)
    return sum(max(len(line) for text in column for line in text.split("\n")) + 2 for column in columns) - 2


def _broken(heading: Heading) -> str:
    text = str(heading)
    return text.replace("-", "-\n") if len(text) > LONG else text


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

    Args:
        report: the results.
        fpr: the FPR convention, `id` or `ood`.
        wide: whether text forms have all intervals, or only those of the first column.
    """
    name, rows, found, columns = fpr_name(fpr), best_first(report), report.answer, list[Column]()
    methods = [report.methods[row] for row in rows]
    at = f"at {100 * report.recall:g} %\n{fpr.upper()} recall"
    if found is not None and len(report.benchmark.groups) > 1:
        marks = ["best" if row == found.best else "tie" if row in found.ties else "" for row in rows]
        means, ends = [found.auroc[row] for row in rows], [found.intervals[row] for row in rows]
        columns.append(_numbers(Heading("mean\nAUROC", sorted=True), means, ends, marks, drawn=True))
    for group in report.benchmark.groups:
        metrics = [method.groups[group] for method in methods]
        errors = wide or not columns
        columns.append(_metric(Heading(f"{shorten(group)}\nAUROC"), metrics, "auroc", errors=errors, drawn=True))
        columns.append(_metric(Heading(f"{shorten(group)}\nFPR", at, "ascending"), metrics, name, errors=wide))
    accuracy = ""
    if report.id_accuracy is not None:
        accuracy = f" · ID accuracy {percentage(report.id_accuracy)} %"
        columns.append(_numbers(Heading("ID acc.\nshaped"), [method.id_accuracy_shaped for method in methods]))
    signs = "★ best of its column, ≈ not significantly different from it." if found else "best of each column in bold."
    notes = [f"FPR: {meaning(name, report.recall)} ({name}).", f"Percent; ± half of a 95 % interval; {signs}"]
    return _by_method(report, f"{report.benchmark.title} · {report.model.spec}{accuracy}", columns, notes)


def by_set(report: Report, metric: str = "auroc", sets: Sequence[str] | None = None, *, errors: bool = False) -> Table:
    """Return the table of one metric by data set, best method first."""
    columns = []
    for name in _sets(report) if sets is None else sets:
        metrics = [report.methods[row].sets[name] for row in best_first(report)]
        heading = Heading(shorten(name), best="ascending" if metric in LOWER else "descending")
        columns.append(_metric(heading, metrics, metric, errors=errors))
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
    """Return every number as CSV: one line per method and set or group, best method first, values in [0, 1]."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    marks = [f"{name}_mark" for name in WITH_INTERVAL]
    bounds = [f"{name}_{end}" for name in WITH_INTERVAL for end in ("low", "high")]
    first, last = ["method", "label", "rank", "use", "kind", "name"], ["id_accuracy", "id_accuracy_shaped", "seconds"]
    writer.writerow([*first, *NAMES, *SELECTIVE, *bounds, *marks, *last])
    use = report.answer.use if report.answer else None
    for rank, row in enumerate(best_first(report), start=1):
        method = report.methods[row]
        accuracies = ["" if value is None else value for value in (report.id_accuracy, method.id_accuracy_shaped)]
        seconds = round(sum(method.seconds.values()), 4)
        for kind, found in (("group", method.groups), ("set", method.sets)):
            for name, metrics in found.items():
                values = [getattr(metrics, key) for key in (*NAMES, *SELECTIVE)]
                limits = [value for key in WITH_INTERVAL for value in metrics.intervals.get(key, ("", ""))]
                marked = [metrics.marks.get(key, "") for key in WITH_INTERVAL]
                place = [row, method.label, rank, int(row == use), kind, name]
                writer.writerow([*place, *values, *limits, *marked, *accuracies, seconds])
    return buffer.getvalue()


def terminal_tables(report: Report, columns: int, fpr: str = "id", *, sets: bool = False) -> list[Table]:
    """Return the tables that fit a terminal.

    Args:
        report: the results.
        columns: the width of the terminal.
        fpr: the FPR convention, `id` or `ood`.
        sets: whether to show every method with its options and its numbers by set, instead of the best ones in the main table.
    """
    main = summary(report, fpr, wide=columns >= WIDE)
    if sets:
        by_sets = [_cut_by_set(report, metric, max(columns, NARROW)) for metric in ("auroc", fpr_name(fpr))]
        return [options(report), *(table for tables in by_sets for table in tables), main]
    wanted = {*ALWAYS, report.answer.use if report.answer else ""}
    asked = [row[0].text for row in main.rows if row[0].text in wanted]
    room = ROWS - sum(name not in {row[0].text for row in main.rows[:ROWS]} for name in asked)
    kept = [row for place, row in enumerate(main.rows) if place < room or row[0].text in wanted]
    hidden = len(main.rows) - len(kept)
    more = [f"{hidden} more methods are in results.md; --by-set prints all methods and sets."] if hidden else []
    return [replace(main, rows=kept, notes=[*main.notes, *left_out(report.failed), *more])]


def write_tables(report: Report, folder: str | os.PathLike[str], fpr: str = "id") -> list[Path]:
    """Write `results.csv`, `results.md` and `results.tex` into a folder."""
    metrics = ("auroc", fpr_name(fpr), *selective(report))
    tables = [summary(report, fpr), *(by_set(report, metric) for metric in metrics), options(report)]
    answer = [] if report.answer is None else [report.answer.sentence, report.answer.cost, *report.answer.evidence]
    said = "\n\n".join(filter(None, (" ".join(answer[:2]), " ".join(answer[2:])))) + "\n\n" if answer else ""
    comment = "".join(f"% {line}\n" for line in answer if line)
    texts = csv_text(report), said + "\n".join(map(markdown, tables)), comment + "\n".join(map(latex, tables))
    return results_folder(folder).write(dict(zip(TABLES, texts, strict=True)))


def left_out(failed: Mapping[str, str]) -> list[str]:
    """Return one line per reason for which methods were left out."""
    reasons: dict[str, list[str]] = {}
    for row, reason in failed.items():
        reasons.setdefault(reason, []).append(row)
    return [f"left out: {', '.join(listed)} ({reason})" for reason, listed in reasons.items()]


def _sets(report: Report) -> list[str]:
    return [name for names in report.benchmark.groups.values() for name in names]


def _cut_by_set(report: Report, metric: str, room: int) -> list[Table]:
    """Return one table by set, with intervals if there is room, or several tables if there is no room for all sets."""
    whole = by_set(report, metric, errors=True)
    if _width(whole) <= room:
        return [whole]
    parts: list[list[str]] = [[]]
    for name in _sets(report):
        if parts[-1] and _width(by_set(report, metric, [*parts[-1], name])) > room:
            parts.append([])
        parts[-1].append(name)
    return [by_set(report, metric, part) for part in parts]


def _by_method(report: Report, title: str, columns: Sequence[Column], notes: Sequence[str] = ()) -> Table:
    """Return a table with one row per method, best first."""
    use, rows = report.answer.use if report.answer else None, []
    for place, row in enumerate(best_first(report)):
        mark, about = "use" if row == use else "", shorten(report.methods[row].about, 200)
        name = Cell(shorten(row, 60), mark, note=shorten(unnamed_setting(report, row), 80), hint=about)
        rows.append([name, *(cells[place] for _, cells in columns)])
    first = Heading("method", best="ascending", words=True)
    return Table(title, [first, *(heading for heading, _ in columns)], rows, list(notes))


def _metric(heading: Heading, found: Sequence[Metrics], metric: str, *, errors: bool, drawn: bool = False) -> Column:
    values = [getattr(metrics, metric) for metrics in found]
    intervals = [metrics.intervals.get(metric) for metrics in found]
    marks = [metrics.marks.get(metric, "") for metrics in found]
    return _numbers(heading, values, intervals, marks, errors=errors, drawn=drawn)


def _numbers(
    heading: Heading,
    values: Sequence[float | None],
    intervals: Sequence[Interval] = (),
    marks: Sequence[str] = (),
    *,
    errors: bool = True,
    drawn: bool = False,
) -> Column:
    """Return a column of percentages; without marks of a test, all that print as the best one lead.

    `errors` is whether text forms have the half of each interval, `drawn` whether HTML draws the intervals.
    """
    texts = [percentage(value) for value in values]
    known = [float(text) for text, value in zip(texts, values, strict=True) if value is not None]
    best = f"{(min if heading.best == 'ascending' else max)(known):.2f}" if known else ""
    given = marks if any(marks) else ["leads" if text == best else "" for text in texts]
    ends = intervals or [None] * len(texts)
    scale = _scale([end for end in ends if end])
    return heading, [
        Cell(
            text,
            mark,
            plain=f" ±{percentage((end[1] - end[0]) / 2, 1)}" if end and errors else "",
            note=f"{percentage(end[0], 1)} – {percentage(end[1], 1)}" if end else "",
            sort="" if value is None else f"{value:.6f}",
            drawing=_whisker(value, end, scale) if drawn and end and value is not None else Markup(),
        )
        for text, value, end, mark in zip(texts, values, ends, given, strict=True)
    ]


def _scale(ends: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the scale of a column's whiskers, which one value far below all others does not squeeze."""
    if not ends:
        return 0.0, 1.0
    lows, high = sorted(end[0] for end in ends), max(end[1] for end in ends)
    quarter = lows[len(lows) // 4]
    return max(lows[0], quarter - 2 * (high - quarter)), high


def _whisker(value: float, end: tuple[float, float], scale: tuple[float, float]) -> Markup:
    """Return a drawing of a value and its interval; an arrow if the value is below the scale."""
    low, high = scale
    span = (high - low) or 1.0
    left, middle, right = (max(round(3 + 68 * (point - low) / span, 1), 3.0) for point in (end[0], value, end[1]))
    shape = Markup('<line x1="{}" x2="{}" y1="4.5" y2="4.5"/><circle cx="{}" cy="4.5" r="2.8"/>')
    shape = Markup('<path d="M8 1L2 4.5L8 8z"/>') if value < low else shape.format(left, right, middle)
    return Markup('<svg class="whisker" viewBox="0 0 74 9" aria-hidden="true">{}</svg>').format(shape)

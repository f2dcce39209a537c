"""A table, whatever it shows, and how it is written: for the terminal, in Markdown and in LaTeX; pages have a template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from markupsafe import Markup

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

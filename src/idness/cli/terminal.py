"""The two consoles: data goes to standard output, progress and notes to standard error."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from idness.core.text import without_folder

if TYPE_CHECKING:
    from rich.console import Console

    from idness.report.tables import Table


def open_console(*, stderr: bool = False) -> Console:
    """Return the console for data, or with `stderr` the one for progress and notes; coloured only on a terminal."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    # A pipe or file has no width: 120 columns, unless COLUMNS is set.
    width = None if stream.isatty() or "COLUMNS" in os.environ else 120
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=False)


def print_note(text: str, *, quiet: bool = False) -> None:
    """Print a line on standard error, unless quiet."""
    if not quiet:
        open_console(stderr=True).print(text, markup=False, soft_wrap=True)


def print_tables(console: Console, tables: Iterable[Table]) -> None:
    """Print tables with their titles and notes."""
    from idness.report.tables import rich_table

    for table in tables:
        console.print(table.title, style="bold", markup=False)
        console.print(rich_table(table))
        console.print("\n".join([*table.notes, ""]), style="dim", markup=False)


def command_line() -> str:
    """Return the command line with absolute paths shortened to file names."""
    return shlex.join(["idness", *(without_folder(word) for word in sys.argv[1:])])

"""The two consoles: data goes to standard output, progress and remarks to standard error."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def stdout() -> Console:
    """Give the console for data: no colour unless it is a terminal, and whole lines where it is not."""
    return _console(stderr=False)


def stderr() -> Console:
    """Give the console for progress and remarks."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    # A pipe or file has no width of its own: 120 columns, unless the caller sets COLUMNS.
    width = None if stream.isatty() or "COLUMNS" in os.environ else 120
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=False)


def command_line() -> str:
    """Write the command line down without the folders of this machine."""
    from idness.core.wording import without_folder

    return shlex.join(["idness", *(without_folder(word) for word in sys.argv[1:])])

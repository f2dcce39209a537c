"""Progress on standard error: how far, how fast, how long still."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from idness.core.progress import Listener

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID


class _Shown(Listener):
    """Shows phases as bars and prints remarks above them."""

    def __init__(self, console: Console, progress: Progress) -> None:
        self.console, self.progress = console, progress
        self.task: TaskID | None = None

    def phase(self, name: str, total: int) -> None:
        if self.task is not None:
            self.progress.remove_task(self.task)
        self.task = self.progress.add_task(name, total=total)

    def advance(self, steps: int) -> None:
        if self.task is not None:
            self.progress.advance(self.task, steps)

    def note(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        self.console.print(f"warning: {text}", markup=False, soft_wrap=True)


@contextmanager
def shown(*, quiet: bool) -> Iterator[Listener]:
    """Show progress on standard error while the block runs; bars only where that is a terminal."""
    if quiet:
        yield Listener()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Task as Running
    from rich.text import Text

    from idness.cli.terminal import stderr

    class Rate(ProgressColumn):
        def render(self, task: Running) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:,.0f}/s")

    console = stderr()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield _Shown(console, progress)

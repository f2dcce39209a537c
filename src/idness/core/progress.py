"""How long jobs say how far they are: to a `Listener`, which `shown` draws on standard error."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from idness.core.errors import IdnessWarning
from idness.core.wording import masked

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID


STARTING = "starting"
"""The phase before the first: torch is loaded, which takes seconds."""


class Listener:
    """Takes what a long job says of its progress, and does nothing with it; subclasses show it."""

    def phase(self, name: str, total: int | None) -> None:
        """Hear that a phase of so many steps begins; none where their number is not known."""

    def advance(self, steps: int) -> None:
        """Hear that some steps of the phase are done."""

    def status(self, text: str) -> None:
        """Hear how the phase stands; it replaces what was said before."""

    def note(self, text: str) -> None:
        """Hear a remark."""

    def warn(self, text: str) -> None:
        """Hear a warning."""


class _Bars(Listener):
    """Draws phases as bars with rate and time left, and prints remarks above them."""

    def __init__(self, console: Console, progress: Progress) -> None:
        self.console, self.progress = console, progress
        self.task: TaskID | None = None

    def phase(self, name: str, total: int | None) -> None:
        if self.task is not None:
            self.progress.remove_task(self.task)
        self.task = self.progress.add_task(name, total=total, status="")
        self.progress.start()

    def advance(self, steps: int) -> None:
        if self.task is not None:
            self.progress.advance(self.task, steps)

    def status(self, text: str) -> None:
        if self.task is not None:
            self.progress.update(self.task, status=text)

    def note(self, text: str) -> None:
        self.console.print(masked(text), markup=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        self.console.print(f"warning: {masked(text)}", markup=False, soft_wrap=True)


def rate(speed: float | None) -> str:
    """Write steps per second; below one a second, seconds per step: "0/s" says nothing."""
    if not speed:
        return ""
    return f"{speed:,.0f}/s" if speed >= 9.5 else f"{speed:.1f}/s" if speed >= 0.95 else f"{1 / speed:,.0f} s each"


@contextmanager
def shown(*, quiet: bool = False, console: Console | None = None) -> Iterator[Listener]:
    """Show progress on standard error, or another console, while the block runs; bars only where that is a terminal."""
    if quiet:
        yield Listener()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Task as Running
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Running) -> Text:
            return Text(rate(task.finished_speed or task.speed))

    place = console or Console(stderr=True, highlight=False)
    words = (TextColumn("{task.description}", markup=False), TextColumn("{task.fields[status]}", markup=False))
    columns = (words[0], BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn(), words[1])
    progress = Progress(*columns, console=place, transient=True, disable=not place.is_terminal)
    try:
        yield _Bars(place, progress)
    finally:
        progress.stop()


@contextmanager
def heard_warnings(warn: Callable[[str], None]) -> Iterator[None]:
    """Hand our own warnings to a function as they come, and let others' pass."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", IdnessWarning)
        show = warnings.showwarning

        def hear(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, IdnessWarning):
                warn(str(message))
            else:
                show(message, category, *where, **more)

        warnings.showwarning = hear
        yield

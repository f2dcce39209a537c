"""Progress callbacks of long jobs, and their display on standard error."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from idness.core.errors import IdnessWarning
from idness.core.text import masked

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars


class Progress:
    """A progress callback that ignores every call; subclasses show or record them."""

    def phase(self, name: str, total: int | None) -> None:
        """Begin a phase of `total` steps; `None` if their number is unknown."""

    def advance(self, steps: int) -> None:
        """Count finished steps of the phase."""

    def status(self, text: str) -> None:
        """Replace the text shown next to the phase."""

    def note(self, text: str) -> None:
        """Report a note."""

    def warn(self, text: str) -> None:
        """Report a warning."""


class _ProgressBars(Progress):
    """Progress bars with rate and remaining time; notes are printed above them."""

    def __init__(self, console: Console, bars: Bars) -> None:
        self.console, self.bars = console, bars
        self.task = bars.add_task("", status="", visible=False)

    def phase(self, name: str, total: int | None) -> None:
        self.bars.remove_task(self.task)
        self.task = self.bars.add_task(name, total=total, status="")
        self.bars.start()

    def advance(self, steps: int) -> None:
        self.bars.advance(self.task, steps)

    def status(self, text: str) -> None:
        self.bars.update(self.task, status=text)

    def note(self, text: str) -> None:
        self.console.print(masked(text), markup=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        self.note(f"warning: {text}")


@contextmanager
def show_progress(*, quiet: bool = False, console: Console | None = None) -> Iterator[Progress]:
    """Show progress on standard error, or on another console, while the block runs; bars are drawn only on a terminal."""
    if quiet:
        yield Progress()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text(f"{speed:,.{0 if speed >= 9.5 else 1}f}/s" if speed else "")

    name, status = (TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[status]}"))
    columns = (name, BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn(), status)
    place = console or Console(stderr=True, highlight=False)
    bars = Bars(*columns, console=place, transient=True, disable=not place.is_terminal)
    progress = _ProgressBars(place, bars)
    progress.phase("starting", None)  # importing torch takes seconds
    try:
        yield progress
    finally:
        bars.stop()


@contextmanager
def report_warnings(warn: Callable[[str], None]) -> Iterator[None]:
    """Pass warnings of idness to a function instead of showing them; other warnings are shown as before."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", IdnessWarning)
        show = warnings.showwarning

        def report(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, IdnessWarning):
                warn(str(message))
            else:
                show(message, category, *where, **more)

        warnings.showwarning = report
        yield

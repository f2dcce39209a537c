"""The log of a run: one CSV row per epoch, and a progress bar on standard error."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from idness.core.files import atomic_write


@dataclass(frozen=True)
class Row:
    """Is one epoch of the log; accuracies are shares in [0, 1]."""

    epoch: int
    step: int
    lr: float
    loss: float
    accuracy: float
    val_accuracy: float | None
    images_per_second: float


@dataclass(frozen=True)
class LogState:
    """Holds what a checkpoint keeps of a log: its rows, and the sums of the epoch that is under way."""

    rows: list[Row]
    loss_sum: float
    right: int
    seen: int
    steps: int


@dataclass
class RunLog:
    """Collects the rows of a run and shows how far it is.

    Args:
        show: draw a progress bar on standard error.
    """

    show: bool = False
    rows: list[Row] = field(default_factory=list)
    loss_sum: float = 0.0
    right: int = 0
    seen: int = 0
    steps: int = 0
    _progress: Progress | None = None
    _task: TaskID = field(default=TaskID(0))
    _say: Callable[[str], None] = lambda text: None

    def groups(self, lines: list[str]) -> None:
        """Show the parameter groups."""
        if self.show:
            console = Console(stderr=True, highlight=False)
            for line in lines:
                console.print(line)

    @contextmanager
    def running(self, step: int, total: int, leader: bool) -> Iterator[None]:
        """Draw the progress bar while the block runs; only one process does."""
        if not (self.show and leader):
            yield
            return
        console = Console(stderr=True, highlight=False)
        columns = (
            BarColumn(),
            TextColumn("{task.completed}/{task.total} steps  {task.description}"),
            TimeRemainingColumn(),
        )
        self._say = console.print
        with Progress(*columns, console=console) as self._progress:
            self._task = self._progress.add_task("", total=total, completed=step)
            yield
        self._progress = None

    def step(self, step: int, loss: float, right: int, images: int) -> None:
        """Add one step."""
        self.loss_sum, self.right, self.seen, self.steps = (
            self.loss_sum + loss,
            self.right + right,
            self.seen + images,
            self.steps + 1,
        )
        if self._progress is not None:
            speed = (self._progress.tasks[0].speed or 0.0) * images
            text = (
                f"loss {self.loss_sum / self.steps:.3f}  accuracy {self.right / self.seen:.1%}  {speed:,.0f} images/s"
            )
            self._progress.update(self._task, completed=step, description=text)

    def epoch(self, epoch: int, step: int, lr: float, speed: float, val_accuracy: float | None) -> None:
        """Close an epoch with one row."""
        accuracy = self.right / max(self.seen, 1)
        self.rows.append(
            Row(epoch, step, lr, self.loss_sum / max(self.steps, 1), accuracy, val_accuracy, round(speed, 1))
        )
        val = "" if val_accuracy is None else f"  validation {val_accuracy:.2%}"
        self._say(f"epoch {epoch}: loss {self.rows[-1].loss:.4f}  accuracy {accuracy:.2%}{val}  {speed:,.0f} images/s")
        self.loss_sum, self.right, self.seen, self.steps = 0.0, 0, 0, 0

    def state(self) -> LogState:
        """Give what a checkpoint keeps of the log."""
        return LogState(self.rows, self.loss_sum, self.right, self.seen, self.steps)

    def restore(self, state: LogState) -> None:
        """Take up the log of a checkpoint."""
        self.rows, self.loss_sum, self.right, self.seen, self.steps = (
            state.rows, state.loss_sum, state.right, state.seen, state.steps
        )  # fmt: skip

    def write(self, path: Path) -> None:
        """Write the rows as CSV, atomically."""
        text = io.StringIO()
        writer = csv.DictWriter(text, [f.name for f in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in asdict(row).items()} for row in self.rows
        )
        atomic_write(path, text.getvalue())

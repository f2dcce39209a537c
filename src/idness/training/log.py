"""The log of a training run: one CSV row per epoch, and what is said while it runs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from idness.core.files import atomic_write
from idness.core.progress import Listener


@dataclass(frozen=True)
class Epoch:
    """Holds what the log says of one pass over the images; accuracies are shares in [0, 1]."""

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

    rows: list[Epoch]
    loss_sum: float
    right: int
    seen: int
    steps: int


@dataclass
class RunLog:
    """Collects the epochs of a run and tells a listener how far it is."""

    listener: Listener = field(default_factory=Listener)
    rows: list[Epoch] = field(default_factory=list)
    loss_sum: float = 0.0
    right: int = 0
    seen: int = 0
    steps: int = 0

    def begin(self, step: int, total: int, remarks: Iterable[str]) -> None:
        """Say what will be done, and how much of it a resumed run has behind it."""
        for remark in remarks:
            self.listener.note(remark)
        self.listener.phase("steps", total)
        self.listener.advance(step)

    def step(self, loss: float, right: int, images: int) -> None:
        """Add one step."""
        self.loss_sum, self.right = self.loss_sum + loss, self.right + right
        self.seen, self.steps = self.seen + images, self.steps + 1
        self.listener.advance(1)
        self.listener.status(f"loss {self.loss_sum / self.steps:.3f}  accuracy {self.right / self.seen:.1%}")

    def epoch(self, epoch: int, step: int, lr: float, speed: float, val_accuracy: float | None) -> None:
        """Close an epoch with one row."""
        accuracy = self.right / max(self.seen, 1)
        self.rows.append(
            Epoch(epoch, step, lr, self.loss_sum / max(self.steps, 1), accuracy, val_accuracy, round(speed, 1))
        )
        val = "" if val_accuracy is None else f"  validation {val_accuracy:.2%}"
        self.listener.note(
            f"epoch {epoch}: loss {self.rows[-1].loss:.4f}  accuracy {accuracy:.2%}{val}  {speed:,.0f} images/s"
        )
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
        writer = csv.DictWriter(text, [f.name for f in fields(Epoch)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in asdict(row).items()} for row in self.rows
        )
        atomic_write(path, text.getvalue())

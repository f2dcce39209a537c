"""The log of a training run: one CSV row per epoch, and what is said while it runs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields

from idness.core.progress import Listener


@dataclass(frozen=True)
class Epoch:
    """Holds what the log says of one pass over the images; accuracies are shares in [0, 1].

    `waited` is the share of the time in which the network waited for images.
    """

    epoch: int
    step: int
    lr: float
    loss: float
    accuracy: float
    val_accuracy: float | None
    images_per_second: float
    waited: float = 0.0


@dataclass
class LogState:
    """Holds what a checkpoint keeps of a log: its rows, and the sums of the epoch that is under way."""

    rows: list[Epoch] = field(default_factory=list)
    loss_sum: float = 0.0
    right: int = 0
    seen: int = 0
    steps: int = 0


@dataclass
class RunLog:
    """Collects the epochs of a run and tells a listener how far it is."""

    listener: Listener = field(default_factory=Listener)
    state: LogState = field(default_factory=LogState)

    def begin(self, step: int, total: int, remarks: Iterable[str]) -> None:
        """Say what will be done, and how much of it a resumed run has behind it."""
        for remark in remarks:
            self.listener.note(remark)
        self.listener.phase("steps", total)
        self.listener.advance(step)

    def step(self, loss: float, right: int, images: int) -> None:
        """Add one step."""
        now = self.state
        now.loss_sum, now.right = now.loss_sum + loss, now.right + right
        now.seen, now.steps = now.seen + images, now.steps + 1
        self.listener.advance(1)
        self.listener.status(f"loss {now.loss_sum / now.steps:.3f}  accuracy {now.right / now.seen:.1%}")

    def epoch(
        self, epoch: int, step: int, lr: float, speed: float, val_accuracy: float | None, waited: float = 0.0
    ) -> None:
        """Close an epoch with one row."""
        done = self.state
        loss, accuracy = done.loss_sum / max(done.steps, 1), done.right / max(done.seen, 1)
        row = Epoch(epoch, step, lr, loss, accuracy, val_accuracy, round(speed, 1), round(waited, 4))
        val = "" if val_accuracy is None else f"  validation {val_accuracy:.2%}"
        self.listener.note(
            f"epoch {epoch}: loss {loss:.4f}  accuracy {accuracy:.2%}{val}  {speed:,.0f} images/s, {waited:.1%} waiting"
        )
        self.state = LogState([*done.rows, row])

    def text(self) -> str:
        """Return the rows as CSV."""
        text = io.StringIO()
        writer = csv.DictWriter(text, [f.name for f in fields(Epoch)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in asdict(row).items()} for row in self.state.rows
        )
        return text.getvalue()

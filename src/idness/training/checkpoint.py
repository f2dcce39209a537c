"""Checkpoints and the log of a run: tensors as safetensors, the rest as JSON that names their file and hash and is written last."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from torch import Tensor

from idness.core.documents import Document, packed
from idness.core.errors import StoreError
from idness.core.files import OutputFolder, sha256_of
from idness.networks.load import IMAGES, LOG, WEIGHTS

INDEX, METHOD = "checkpoint.json", "method.safetensors"
CHECKPOINT = re.compile(r"checkpoint-\d{8,}\.safetensors")


@dataclass(frozen=True)
class Epoch:
    """A row of the log; accuracies are fractions in [0, 1], and `waited` is the fraction of time spent waiting for images."""

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
    """The rows of the log, and the sums of the current epoch."""

    rows: list[Epoch] = field(default_factory=list)
    loss_sum: float = 0.0
    right: int = 0
    seen: int = 0
    steps: int = 0


@dataclass(frozen=True)
class Index:
    """The JSON part of a checkpoint: the tensors' file and its hash, the number of steps done, the run's identity and its log."""

    tensors: str
    sha256: str
    step: int
    run: dict[str, Any]
    log: LogState


_DOCUMENT = Document(
    content=Index,
    version=1,
    absent="delete the folder to start again",
    remedy="delete the folder to start again",
    finite=False,  # the loss of a run of 0.1 that diverged
)


def run_folder(path: str | os.PathLike[str], *, force: bool = False) -> OutputFolder:
    """Return the output folder of a training run."""
    return OutputFolder.of(path, _written, force=force)


def _written(folder: Path) -> tuple[str, ...]:
    """Return the names of the files that a run of 0.1.0 consists of; empty if the folder has none."""
    try:
        last = _DOCUMENT.read(folder / INDEX)
    except StoreError:
        return ()
    return (INDEX, Path(last.tensors).name, LOG, WEIGHTS, IMAGES, METHOD)


def save_checkpoint(
    folder: OutputFolder, tensors: Mapping[str, Tensor], step: int, run: dict[str, Any], log: LogState
) -> None:
    """Write a checkpoint and the log; after a kill at any moment, the previous checkpoint or this one is complete."""
    name, content = f"checkpoint-{step:08d}.safetensors", packed(tensors)
    index = _DOCUMENT.text(Index(name, sha256_of(content), step, run, log))
    table = io.StringIO()
    writer = csv.DictWriter(table, [f.name for f in fields(Epoch)], lineterminator="\n")
    writer.writeheader()
    for row in log.rows:
        writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in asdict(row).items()})
    folder.write({name: content, INDEX: index, LOG: table.getvalue()})
    folder.remove(old for old in folder.files if CHECKPOINT.fullmatch(old) and old != name)


def load_checkpoint(folder: Path) -> tuple[Index, dict[str, Tensor]] | None:
    """Read the last checkpoint of a folder; `None` if there is none."""
    if not (folder / INDEX).is_file():
        return None
    index = _DOCUMENT.read(folder / INDEX)
    return index, _DOCUMENT.tensors(folder / Path(index.tensors).name, index.sha256)


def checkpoint_part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors under a prefix, without it."""
    start = f"{prefix}."
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}

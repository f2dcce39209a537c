"""Checkpoints as safetensors + JSON: the JSON names the tensors' file and their hash, and is written last."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from idness.core.documents import Document, packed
from idness.core.errors import StoreError
from idness.core.files import OutputFolder, sha256_of
from idness.networks.run_folder import IMAGES, LOG, WEIGHTS
from idness.training.log import LogState, RunLog

INDEX, METHOD = "checkpoint.json", "method.safetensors"
CHECKPOINT = re.compile(r"checkpoint-\d{8,}\.safetensors")


@dataclass(frozen=True)
class Index:
    """Names the tensors' file and its hash, and holds the rest of a run at rest as plain values.

    `step` is how many steps were done, `run` what the run is: its settings, data and method.
    """

    tensors: str
    sha256: str
    step: int
    run: dict[str, Any]
    log: LogState


_DOCUMENT = Document(
    content=Index,
    version=1,
    absent="delete the folder to start afresh",
    remedy="delete the folder to start afresh",
    finite=False,  # the loss of a run that diverges
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
    folder: OutputFolder, tensors: Mapping[str, Tensor], step: int, run: dict[str, Any], log: RunLog
) -> None:
    """Write a checkpoint and the log so that a reader, after a kill at any moment, sees the old checkpoint or this one."""
    name, content = f"checkpoint-{step:08d}.safetensors", packed(tensors)
    index = _DOCUMENT.text(Index(name, sha256_of(content), step, run, log.state))
    folder.write({name: content, INDEX: index, LOG: log.text()})
    folder.remove(old for old in folder.files if CHECKPOINT.fullmatch(old) and old != name)


def load_checkpoint(folder: Path) -> tuple[Index, dict[str, Tensor]] | None:
    """Read the last whole checkpoint of a folder; None where there is none."""
    if not (folder / INDEX).is_file():
        return None
    index = _DOCUMENT.read(folder / INDEX)
    return index, _DOCUMENT.tensors(folder / Path(index.tensors).name, index.sha256)


def part_of(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Select the tensors under a prefix, without it."""
    start = f"{prefix}."
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}


def optimizer_tensors(optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]) -> dict[str, Tensor]:
    """Collect SGD's momentum by parameter name."""
    buffers = {names[p]: state.get("momentum_buffer") for p, state in optimizer.state.items()}
    return {name: buffer for name, buffer in buffers.items() if buffer is not None}


def restore_optimizer(
    optimizer: torch.optim.Optimizer, named: Mapping[str, nn.Parameter], saved: Mapping[str, Tensor]
) -> None:
    """Put SGD's momentum back, in each parameter's own memory format."""
    for name, buffer in saved.items():
        parameter = named[name]
        fresh = torch.empty_like(parameter)
        fresh.copy_(buffer)
        optimizer.state[parameter]["momentum_buffer"] = fresh

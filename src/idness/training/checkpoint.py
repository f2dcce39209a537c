"""Checkpoints as safetensors + JSON: the JSON names the tensors' file and their hash, and is written last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from idness.core.documents import Document, packed
from idness.core.files import atomic_write, sha256_of
from idness.training.log import LogState

INDEX = "checkpoint.json"


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


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> str:
    """Write tensors to one safetensors file, atomically, and give its hash."""
    content = packed(tensors, metadata)
    atomic_write(path, content)
    return sha256_of(content)


def save_checkpoint(folder: Path, tensors: Mapping[str, Tensor], step: int, run: dict[str, Any], log: LogState) -> None:
    """Write a checkpoint so that a reader, after a kill at any moment, sees the old one or this one."""
    name = f"checkpoint-{step:08d}.safetensors"
    digest = save_tensors(folder / name, tensors)
    _DOCUMENT.write(folder / INDEX, Index(name, digest, step, run, log))
    for old in folder.glob("checkpoint-*.safetensors"):
        if old.name != name:
            old.unlink(missing_ok=True)


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

"""Checkpoints as safetensors + JSON: the JSON names the tensors' file and their hash, and is written last."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from idness.core.errors import StoreError
from idness.core.files import atomic_path, atomic_write, sha256

FORMAT = 1
INDEX = "checkpoint.json"


@dataclass(frozen=True)
class Checkpoint:
    """Is a run at rest: its tensors by name, and the rest as plain values."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]

    def part(self, prefix: str) -> dict[str, Tensor]:
        """Select the tensors under a prefix, without it."""
        start = f"{prefix}."
        return {name.removeprefix(start): value for name, value in self.tensors.items() if name.startswith(start)}


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors to one safetensors file, atomically."""
    # Each tensor is copied: safetensors refuses shared memory, and channels_last is not contiguous.
    plain = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    with atomic_path(path) as part:
        save_file(plain, str(part), metadata=dict(metadata or {}))


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint so that a reader, after a kill at any moment, sees the old one or this one."""
    name = f"checkpoint-{checkpoint.facts['step']:08d}.safetensors"
    save_tensors(folder / name, checkpoint.tensors)
    facts = {"format": FORMAT, "tensors": name, "sha256": sha256(folder / name), **checkpoint.facts}
    atomic_write(folder / INDEX, json.dumps(facts, indent=1) + "\n")
    for old in folder.glob("checkpoint-*.safetensors"):
        if old.name != name:
            old.unlink(missing_ok=True)


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """Read the last whole checkpoint of a folder; None where there is none."""
    index = folder / INDEX
    if not index.is_file():
        return None
    try:
        facts = json.loads(index.read_text())
        newer = int(facts["format"]) > FORMAT
        path = folder / Path(facts["tensors"]).name
        whole = not newer and path.is_file() and sha256(path) == facts["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{index}: damaged ({error}); delete the folder to start afresh") from error
    if newer:
        raise StoreError(f"{index}: format {facts['format']} is newer than {FORMAT}; update idness")
    if not whole:
        raise StoreError(f"{index}: {path.name} is missing or damaged; delete the folder to start afresh")
    return Checkpoint(load_file(str(path)), facts)


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

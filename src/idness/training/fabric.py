"""How training runs on this machine: in which precision, alone or as one of those processes that torchrun started."""

from __future__ import annotations

import os
import warnings
from typing import Any

import torch

from idness.core.errors import IdnessWarning, OptionError
from idness.core.extras import needed
from idness.networks.engines import bf16_problem

APART = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""What keeps torchrun from giving all attempts one store of addresses."""


def make_fabric(precision: str) -> Any:
    """Set up Lightning Fabric for this process: alone, or one of those that torchrun started."""
    fabric = needed("lightning_fabric", "training", "train")
    precision = _available(precision)
    problem = bf16_problem() if precision == "bf16-mixed" and not torch.cuda.is_available() else ""
    if problem:
        raise OptionError(f"training: precision bf16-mixed cannot be used on this machine ({problem}); use 32-true")
    world = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if "TORCHELASTIC_RUN_ID" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return fabric.Fabric(accelerator="auto", devices=1, precision=precision)
    _warn_of_old_addresses()
    nodes = int(os.environ["WORLD_SIZE"]) // world
    strategy = fabric.strategies.DDPStrategy(process_group_backend=None if torch.cuda.is_available() else "gloo")
    return fabric.Fabric(accelerator="auto", devices=world, num_nodes=nodes, strategy=strategy, precision=precision)


def _available(precision: str) -> str:
    """Choose `auto`: mixed precision where it is faster. CPUs announce bf16 that makes training slower."""
    if precision != "auto":
        return precision
    if not torch.cuda.is_available():
        return "32-true"
    return "bf16-mixed" if torch.cuda.is_bf16_supported() else "16-mixed"


def _warn_of_old_addresses() -> None:
    """Say what restarts need: processes that are started again may otherwise find the addresses of those that died, and hang."""
    restarts = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))
    if restarts and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and os.environ.get("RANK") == "0":
        warnings.warn(
            f"training: torchrun may restart killed processes, which then look for the addresses of those that died; set {APART}=1"
            " before torchrun",
            IdnessWarning,
            stacklevel=2,
        )

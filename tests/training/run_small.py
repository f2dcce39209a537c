"""Trains a small network, here or in processes of its own that a test can kill or start twice."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from idness.training import finetune, networks
from idness.training.objective import Objective
from tests.training.conftest import small_world


class NoNorm(nn.Module):
    """A network without batch norm, so that the joint batch of two processes is one batch."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.fc = nn.Linear(32, classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.body(images))
        return logits


def small_run(method: str, out: str | Path, batch: int = 8, norm: bool = True) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = networks.build("tiny_resnet", 3) if norm else NoNorm()
    options = {"epochs": 4, "lr": 0.05, "warmup": 0.5, "milestones": (), "ema": 0.9, "checkpoint_every": 2}
    finetune(model, small_world(96), method, out=out, batch_size=batch, **options)


def slow_run(method: str, out: Path) -> None:
    """Leave time to be killed in, at every step; nothing of what is computed changes."""
    normalise = Objective.normalise

    def slow(self: Objective, images: Tensor) -> Tensor:
        time.sleep(0.03)
        return normalise(self, images)

    Objective.normalise = slow  # type: ignore[method-assign]
    small_run(method, out)


def run_as_rank(rank: int, port: int, method: str, out: Path) -> None:
    """Run as one of two processes that torchrun has started."""
    given = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0}
    given |= {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "TORCHELASTIC_RUN_ID": "small"}
    os.environ.update({name: str(value) for name, value in given.items()})
    small_run(method, out, norm=False)

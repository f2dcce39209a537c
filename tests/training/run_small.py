"""Trains a small network, here or in a process of its own that a test can kill or start twice."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
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
    torch.manual_seed(0)
    model = networks.build("tiny_resnet", 3) if norm else NoNorm()
    options = {"epochs": 4, "lr": 0.05, "warmup": 0.5, "milestones": (), "ema": 0.9, "checkpoint_every": 2}
    finetune(model, small_world(96), method, out=out, batch_size=batch, **options)


def slowed(normalise: Callable[[Objective, Tensor], Tensor]) -> Callable[[Objective, Tensor], Tensor]:
    """Leave time to be killed in, at every step; nothing of what is computed changes."""

    def slow(self: Objective, images: Tensor) -> Tensor:
        time.sleep(0.03)
        return normalise(self, images)

    return slow


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("method")
    parser.add_argument("out")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--no-norm", action="store_true")
    parser.add_argument("--slowly", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.slowly:
        Objective.normalise = slowed(Objective.normalise)  # type: ignore[method-assign]
    small_run(given.method, given.out, given.batch, not given.no_norm)


if __name__ == "__main__":
    main()

"""Short training runs, in this process or in processes that a test can kill or start several of."""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

import torch
from torch import Tensor, nn

from idness.data import Preprocessing, folder_set
from idness.training import StreamedSet, finetune
from idness.training.loop import Trainer

SCRIPT = Path(__file__)


class NoNorm(nn.Module):
    """A network without batch norm, so that the joint batch of two processes equals one batch."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.fc = nn.Linear(32, classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.body(images))
        return logits


class Flattening(nn.Module):
    """Flattens with `.view`, as many networks of tutorials do, which takes contiguous memory only."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.fc = nn.Linear(4 * 8 * 8, 3)

    def forward(self, images: Tensor) -> Tensor:
        features = torch.relu(self.conv(images))
        return self.fc(features.view(len(features), -1))


def streamed_run(root: Path, out: Path, accumulate: int = 1) -> None:
    torch.manual_seed(0)
    data = StreamedSet(folder_set(root), Preprocessing(resize=40, crop=32), workers=2)
    options = {"epochs": 6, "lr": 0.05, "checkpoint_every": 2, "crops": "resized", "seed": 5}
    finetune(NoNorm(5), data, "ish", val=data, out=out, batch_size=5, accumulate=accumulate, layer="fc", **options)


def die_once(step: int, out: Path) -> None:
    """Kill the second process once, at one step."""
    original = Trainer._step

    def changed(self: Trainer) -> tuple[float, int]:
        if self.step == step and self.fabric.global_rank == 1 and not (out / "died").exists():
            (out / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self)

    Trainer._step = changed  # type: ignore[method-assign]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--die-at", type=int, default=-1)
    given = parser.parse_args()
    torch.set_num_threads(1)
    die_once(given.die_at, given.out)
    streamed_run(given.root, given.out)

"""Trains a small network on streamed images, here or in processes of its own that a test can kill or start several of."""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path

import torch
from torch import nn

from idness.data import Preprocessing, folder_set
from idness.training import StreamedSet, finetune, networks
from idness.training.loop import Trainer
from tests.training.run_small import NoNorm

SCRIPT = Path(__file__)


def streamed_run(root: Path, out: Path, accumulate: int = 1, norm: bool = False) -> None:
    torch.manual_seed(0)
    model: nn.Module = networks.build("tiny_resnet", 5) if norm else NoNorm(5)
    data = StreamedSet(folder_set(root), Preprocessing(resize=40, crop=32), workers=2)
    options = {"epochs": 6, "lr": 0.05, "checkpoint_every": 2, "crops": "resized", "seed": 5}
    finetune(model, data, "ish", val=data, out=out, batch_size=5, accumulate=accumulate, layer="fc", **options)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--norm", action="store_true")
    parser.add_argument("--slowly", action="store_true")
    parser.add_argument("--die-at", type=int, default=-1)
    given = parser.parse_args()
    torch.set_num_threads(1)
    step = Trainer._step

    def watched(self: Trainer) -> tuple[float, int]:
        if given.slowly:
            time.sleep(0.05)
        if self.step == given.die_at and self.fabric.global_rank == 1 and not (given.out / "died").exists():
            (given.out / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self)

    Trainer._step = watched  # type: ignore[method-assign]
    streamed_run(given.root, given.out, norm=given.norm)


if __name__ == "__main__":
    main()

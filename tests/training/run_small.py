"""Train a small network in a process of its own, for tests that kill it or start several."""

from __future__ import annotations

import argparse
import time

import torch

from idness.training import finetune, networks
from idness.training.objective import Objective
from tests.training.conftest import small_world
from tests.training.test_loop import Plain32


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("method")
    parser.add_argument("out")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--slowly", action="store_true")
    given = parser.parse_args()
    if given.slowly:
        # Time to be killed in, at every step; nothing of what is computed changes.
        Objective.normalise = _slow(Objective.normalise)  # type: ignore[method-assign]
    torch.manual_seed(0)
    model = (
        Plain32() if given.method in {"plain"} or given.batch == 16 or _several() else networks.build("tiny_resnet", 3)
    )
    finetune(
        model,
        small_world(96),
        given.method,
        out=given.out,
        epochs=4,
        batch_size=given.batch,
        lr=0.05,
        warmup=0.5,
        milestones=(),
        ema=0.9,
        checkpoint_every=2,
    )


def _several() -> bool:
    import os

    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def _slow(function):  # type: ignore[no-untyped-def]
    def slower(self, images):  # type: ignore[no-untyped-def]
        time.sleep(0.03)
        return function(self, images)

    return slower


if __name__ == "__main__":
    main()

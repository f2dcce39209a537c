"""A user's network that takes its time, says in which process it runs, and can be told to run out of disk there."""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path

import tiny_net
from torch import Tensor


class Watched(tiny_net.Tiny):
    seconds = 0.0
    folder = ""

    def forward(self, images: Tensor) -> Tensor:
        time.sleep(self.seconds)
        if self.folder:
            (Path(self.folder) / str(os.getpid())).touch()
        return super().forward(images)


def make(seconds: float = 0.0, folder: str = "", full: bool = False) -> Watched:
    model = Watched()
    model.seconds, model.folder = seconds, folder
    if (full and "ray._private.workers.default_worker" in sys.modules) or (full and "default_worker" in sys.argv[0]):
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # what is written beyond fails, as on a full disk
    return model

"""Chooses the precision of the network's forward passes: by wish, or by measuring."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from idness.core.errors import OptionError
from idness.networks.split import Precision, SplitModel

CHOICES = ("fp32", "bf16", "auto")
GAIN = 1.2
"""How much faster bfloat16 must be to be worth its rounding."""
# Some machines announce instructions that they cannot run: then the process dies, without an error to catch.
PROBE = """
import torch
with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
    torch.nn.Linear(512, 512)(torch.rand(512, 512))
    torch.nn.Conv2d(64, 64, 3)(torch.rand(4, 64, 32, 32).contiguous(memory_format=torch.channels_last))
"""


@dataclass(frozen=True)
class ChosenPrecision:
    """Says which precision was asked for, which one is used, and why."""

    asked: str
    used: Precision
    why: str


AS_ASKED = ChosenPrecision("fp32", "fp32", "as asked")


def choose_precision(
    asked: str, split: SplitModel, images: Tensor | None, clock: Callable[[], float] = time.perf_counter
) -> ChosenPrecision:
    """Choose a precision.

    Args:
        asked: fp32, bf16 or auto, which takes bf16 where it is clearly faster on these images.
        split: the network.
        images: one batch to measure on; none where there is nothing to run.
        clock: tells the time in seconds.
    """
    if asked not in CHOICES:
        raise OptionError(f"precision must be one of {', '.join(CHOICES)}; got {asked!r}")
    if images is None:
        return ChosenPrecision("fp32", "fp32", "no images to run")
    if asked == "fp32":
        return AS_ASKED
    on_cpu = split.device.type == "cpu"
    problem = bf16_problem() if on_cpu else ""
    if problem:
        if asked == "bf16":
            raise OptionError(f"precision bf16 cannot be used on this machine ({problem}); use fp32")
        return ChosenPrecision(asked, "fp32", f"bf16 cannot be used on this machine ({problem})")
    if asked == "bf16":
        return ChosenPrecision(asked, "bf16", "as asked")
    gain = _seconds(split, images, "fp32", clock) / max(_seconds(split, images, "bf16", clock), 1e-9)
    if gain < GAIN:
        return ChosenPrecision(asked, "fp32", f"bf16 is {gain:.1f} times as fast here, not worth its rounding")
    return ChosenPrecision(asked, "bf16", f"bf16 is {gain:.1f} times as fast here")


@cache
def bf16_problem() -> str:
    """Say why bfloat16 cannot be used on this CPU, found out in another process; nothing if it can."""
    try:
        done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"trying it failed: {type(error).__name__}"
    if done.returncode < 0:
        return f"the process dies by signal {-done.returncode}"
    return "torch refuses it" if done.returncode else ""


def _seconds(split: SplitModel, images: Tensor, precision: Precision, clock: Callable[[], float]) -> float:
    split.split(images[:8], precision=precision)  # warm up
    times = []
    for _ in range(3):
        start = clock()
        split.split(images, precision=precision)
        if split.device.type == "cuda":
            torch.cuda.synchronize()  # a GPU answers before it is done
        times.append(clock() - start)
    return min(times)

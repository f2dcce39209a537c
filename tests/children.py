"""Runs functions in processes of their own, to be killed or to race, which are forked from one that has imported everything.

A process that imports torch by itself takes seconds of which the test needs none.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["torch._dynamo", "lightning_fabric", "pytest", "idness.training", "idness.guard", "idness.activations.extract"]
)


def started(function: Callable[..., object], *arguments: object) -> ForkServerProcess:
    """Start a function of a test's module; what it is given must be picklable."""
    process = FORKS.Process(target=function, args=arguments, daemon=True)
    process.start()
    return process


def exit_code(process: ForkServerProcess) -> int | None:
    """Wait for the end of a process."""
    process.join()
    return process.exitcode

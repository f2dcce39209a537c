"""Modes in which a network runs for a while, and after which it is as it was, whichever threads run it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch
from torch import nn


@contextmanager
def inference(model: nn.Module) -> Iterator[None]:
    """Switch to evaluation without gradients, and put every module's mode back afterwards."""
    # The attribute alone: a module's own `eval()` may do more, as those do that merge weights, and would have to be undone.
    with _EVALUATED.hold(model.modules()), torch.inference_mode(False), torch.no_grad():
        yield


@contextmanager
def differentiable(model: nn.Module) -> Iterator[None]:
    """Switch to evaluation with gradients for the input alone: parameters are constants, and get none."""
    with inference(model), _CONSTANT.hold(model.parameters()), torch.enable_grad():
        yield


class _SwitchedOff:
    """Switches an attribute of objects off until the last thread that asked for it is done.

    If each thread put back what it had found, the first one done would switch it on under the others.
    """

    def __init__(self, attribute: str) -> None:
        self._attribute = attribute
        self._lock = Lock()
        self._held: dict[int, tuple[Any, bool, int]] = {}

    @contextmanager
    def hold(self, objects: Iterable[Any]) -> Iterator[None]:
        """Keep the attribute off while the block runs."""
        listed = list(objects)
        with self._lock:
            for each in listed:
                _, before, holders = self._held.get(id(each), (each, getattr(each, self._attribute), 0))
                self._held[id(each)] = each, before, holders + 1
                if getattr(each, self._attribute):
                    setattr(each, self._attribute, False)
        try:
            yield
        finally:
            with self._lock:
                for each in listed:
                    _, before, holders = self._held.pop(id(each))
                    if holders > 1:
                        self._held[id(each)] = each, before, holders - 1
                    elif before:
                        setattr(each, self._attribute, True)


_EVALUATED, _CONSTANT = _SwitchedOff("training"), _SwitchedOff("requires_grad")

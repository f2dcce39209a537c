"""Brings images to the device of a network; to a GPU the next ones while it works on the last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Item = TypeVar("Item")


class Feeder:
    """Makes network inputs of pixels on a device.

    On a GPU, pixels are copied as bytes, a quarter of what normalised values take, from memory that the GPU reads by itself, and in a
    stream of their own: the copy of one batch and the network's work on the one before go on at the same time. On the CPU
    nothing is copied.

    Args:
        device: where the network is.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def inputs(self, pixels: NDArray[np.uint8], normalize: Callable[[NDArray[np.uint8] | Tensor], Tensor]) -> Tensor:
        """Copy a batch and normalise it there."""
        if self.stream is None:
            return normalize(pixels)
        with self._beside():
            held = self._pinned(torch.from_numpy(np.ascontiguousarray(pixels)))
            return normalize(held.to(self.device, non_blocking=True))

    def ahead(self, items: Iterable[tuple[Item, Tensor | None]]) -> Iterator[tuple[Item, Tensor | None]]:
        """Give items with their inputs in order, each after the next one's copy was begun; on the CPU one by one."""
        if self.stream is None:
            yield from items
            return
        waiting: tuple[Item, Tensor | None] | None = None
        for item in items:
            if waiting is not None:
                yield self._arrived(waiting)
            waiting = item
        if waiting is not None:
            yield self._arrived(waiting)

    def _arrived(self, item: tuple[Item, Tensor | None]) -> tuple[Item, Tensor | None]:
        """Let the network wait for a copy, and no one reuse its memory before the network is done with it."""
        if item[1] is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_stream(self.stream)
            item[1].record_stream(current)
        return item

    def _beside(self) -> Any:
        return torch.cuda.stream(self.stream) if self.device.type == "cuda" else nullcontext()

    def _pinned(self, pixels: Tensor) -> Tensor:
        return pixels.pin_memory() if self.device.type == "cuda" else pixels

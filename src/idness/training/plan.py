"""Which images make which step, and which of them this process takes: a function of seed and step alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

MIXED = 16
"""How many blocks of a set that is read in blocks are mixed with each other."""


def mix(*numbers: int | str) -> int:
    """Mix seed, step and purpose into one 63-bit seed."""
    text = "/".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


def seeded(*numbers: int | str) -> torch.Generator:
    """Make a generator that depends on seed, step and purpose alone."""
    return torch.Generator().manual_seed(mix(*numbers))


@dataclass(frozen=True)
class Plan:
    """Says of every step which images it takes; several processes take the parts of what one would take.

    Args:
        images: how many images there are.
        batch_size: images of one batch of one process.
        accumulate: batches of a process that make one step.
        seed: decides the order.
        rank: which process this is.
        world: how many processes there are.
        blocks: where the blocks of a set begin that is read in blocks, and where the last ends.
    """

    images: int
    batch_size: int
    accumulate: int = 1
    seed: int = 0
    rank: int = 0
    world: int = 1
    blocks: Sequence[int] | None = None

    @property
    def per_step(self) -> int:
        """How many images one step of all processes takes."""
        return self.batch_size * self.accumulate * self.world

    @property
    def steps_per_epoch(self) -> int:
        """How many whole steps the images give."""
        return self.images // self.per_step

    def order(self, epoch: int) -> Tensor:
        """Give the order of the images in one epoch."""
        generator = seeded(self.seed, "order", epoch)
        if self.blocks is None:
            return torch.randperm(self.images, generator=generator)
        ranges = [torch.arange(*pair) for pair in zip(self.blocks, self.blocks[1:], strict=False)]
        shuffled = [ranges[place] for place in torch.randperm(len(ranges), generator=generator).tolist()]
        windows = [torch.cat(shuffled[start : start + MIXED]) for start in range(0, len(shuffled), MIXED)]
        return torch.cat([window[torch.randperm(len(window), generator=generator)] for window in windows])

    def steps(self, first: int, last: int) -> Iterator[tuple[int, int, Tensor]]:
        """Give number, epoch and images of each step of all processes, from one step to before another."""
        order, known = torch.empty(0), -1
        for step in range(first, last):
            epoch, position = divmod(step, self.steps_per_epoch)
            if epoch != known:
                order, known = self.order(epoch), epoch
            yield step, epoch, order[position * self.per_step : (position + 1) * self.per_step]

    def shares(self) -> list[slice]:
        """Give this process's share of a step's images, one slice for each of its batches."""
        every = self.world * self.accumulate
        return [slice(part * self.world + self.rank, None, every) for part in range(self.accumulate)]

"""Inputs reach the network's device in order; what a GPU adds is tried without one as far as that goes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from idness.activations.extract import Feeder
from idness.data import Preprocessing

HOW = Preprocessing(mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))


class Streamed(Feeder):
    """Works as on a GPU, whose streams it only notes."""

    def __init__(self, told: list[str]) -> None:
        super().__init__(torch.device("cpu"))
        self.stream, self.told = object(), told

    def inputs(self, pixels: np.ndarray, normalize: Any) -> Tensor:
        return normalize(pixels)  # type: ignore[no-any-return]

    def _arrived(self, item: tuple[int, Tensor | None]) -> tuple[int, Tensor | None]:  # type: ignore[override]
        self.told.append(f"run {item[0]}")
        return item


def items(feeder: Feeder, told: list[str]) -> Iterator[tuple[int, Tensor | None]]:
    rng = np.random.default_rng(0)
    for number in range(4):
        told.append(f"copy {number}")
        pixels = rng.integers(0, 256, (2, 5, 6, 3), dtype=np.uint8)
        yield number, None if number == 2 else feeder.inputs(pixels, HOW.normalize)


def test_a_copy_begins_before_the_batch_in_front_of_it_runs() -> None:
    told: list[str] = []
    feeder = Streamed(told)
    found = list(feeder.ahead(items(feeder, told)))
    assert told == ["copy 0", "copy 1", "run 0", "copy 2", "run 1", "copy 3", "run 2", "run 3"]
    plain = Feeder(torch.device("cpu"))
    wanted = list(plain.ahead(items(plain, [])))
    assert [number for number, _ in found] == [number for number, _ in wanted] == [0, 1, 2, 3]
    for (_, ours), (_, theirs) in zip(found, wanted, strict=True):
        assert (ours is None and theirs is None) or torch.equal(ours, theirs)  # type: ignore[arg-type]


def test_on_the_cpu_nothing_is_held_ahead() -> None:
    told: list[str] = []
    feeder = Feeder(torch.device("cpu"))
    for number, _ in feeder.ahead(items(feeder, told)):
        told.append(f"run {number}")
    assert told[:4] == ["copy 0", "run 0", "copy 1", "run 1"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_same_inputs() -> None:
    there, here = Feeder(torch.device("cuda")), Feeder(torch.device("cpu"))
    pairs = zip(there.ahead(items(there, [])), here.ahead(items(here, [])), strict=True)
    for (_, ours), (_, theirs) in pairs:
        assert (ours is None and theirs is None) or torch.equal(ours.cpu(), theirs)  # type: ignore[union-attr, arg-type]

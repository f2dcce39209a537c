from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch

from idness.training import TrainingSet
from idness.training.loop import Trainer


def small_world(count: int = 48, size: int = 8, seed: int = 0) -> TrainingSet:
    """Three classes that differ in brightness, with noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    noise = torch.rand(count, size, size, 3, generator=generator) * 80
    return TrainingSet((noise + labels.view(-1, 1, 1, 1) * 70).to(torch.uint8), labels, ("dark", "grey", "bright"))


@pytest.fixture
def world() -> TrainingSet:
    return small_world()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Runs here as in the processes it is compared with: sums depend on the number of threads in their last bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def stopped_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], AbstractContextManager[None]]:
    """A context in which training is interrupted before a step."""
    step = Trainer._step

    @contextmanager
    def stopping(last: int) -> Iterator[None]:
        def changed(self: Trainer) -> tuple[float, int]:
            if self.step == last:
                raise KeyboardInterrupt
            return step(self)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Trainer, "_step", changed)
            yield

    return stopping

"""Threads that run one network at the same time: each sees its own images, and the network stays as it was."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from idness import SplitModel
from idness.networks.modules import differentiable, inference, module_fingerprint

THREADS, CALLS = 8, 60


@pytest.fixture
def hasty() -> Iterator[None]:
    """Switch between threads as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class TwoHeads(nn.Module):
    """A network with a second head after the one whose output is returned."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.fc, self.second = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, images: Tensor) -> Tensor:
        features = self.body(images)
        answer: Tensor = self.fc(features)
        for _ in range(3):
            self.second(features)
        return answer


class Functional(TwoHeads):
    """Computes its head without a layer."""

    def forward(self, images: Tensor) -> Tensor:
        return 4 * functional.linear(self.body(images), functional.normalize(self.fc.weight))


def at_once(work: Callable[[int], Tensor], calls: int = CALLS) -> list[Tensor]:
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(work, range(calls)))


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("kind", [TwoHeads, Functional])
@pytest.mark.parametrize("training", [False, True])
def test_threads_get_their_own_features_and_leave_the_network_as_it_was(kind: type[TwoHeads], training: bool) -> None:
    model = kind().train(training)
    before, split = module_fingerprint(model), SplitModel(model)
    images = torch.randn(CALLS, 2, 3, 8, 8)
    expected = [split.split(batch).features for batch in images]
    found = at_once(lambda place: split.split(images[place]).features)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert module_fingerprint(model) == before
    assert all(module.training is training for module in model.modules())


def test_a_network_is_in_evaluation_mode_until_the_last_is_done() -> None:
    model = TwoHeads().train()
    model.body.eval()
    begun, done = threading.Event(), threading.Event()

    def first() -> None:
        with inference(model):
            begun.set()
            assert done.wait(60)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(first)
        assert begun.wait(60)
        with differentiable(model):
            done.set()
            running.result()
            assert not any(module.training for module in model.modules())
            assert not any(parameter.requires_grad for parameter in model.parameters())
    assert model.fc.training
    assert not model.body[1].training
    assert all(parameter.requires_grad for parameter in model.parameters())

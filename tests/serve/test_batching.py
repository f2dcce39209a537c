"""How images are gathered into batches, and how answers leave."""

from __future__ import annotations

import queue
import socket
from concurrent.futures import Future
from typing import Any

import pytest
import torch

from idness.guard import Guard
from idness.serve.batching import Batcher, Job
from idness.serve.server import make_server


def job() -> Job:
    return Job(torch.zeros(3, 16, 16), Future())


class Waits:
    """Stands in for the queue: notes how long it is waited at, and hands over what comes meanwhile."""

    def __init__(self, *coming: Job) -> None:
        self.coming, self.waited = list(coming), []

    def get(self, timeout: float) -> Any:
        self.waited.append(timeout)
        if not self.coming:
            raise queue.Empty
        return self.coming.pop(0)

    def get_nowait(self) -> Any:
        raise queue.Empty


@pytest.mark.parametrize("on_their_way", [0, 1, 3])
def test_a_batch_lingers_for_images_that_are_on_their_way_and_for_no_others(guard: Guard, on_their_way: int) -> None:
    batcher = Batcher(guard, size=8, linger=5.0)
    waits: Any = Waits(*(job() for _ in range(on_their_way)))
    batcher._jobs = waits
    with batcher.reserved(1 + on_their_way):
        batch, last = batcher._gather(job())
    assert len(batch) == 1 + on_their_way
    assert not last
    assert len(waits.waited) == on_their_way
    assert all(0 < seconds <= 5 for seconds in waits.waited)


def test_a_batch_is_never_larger_than_it_may_be(guard: Guard) -> None:
    batcher = Batcher(guard, size=2, linger=5.0)
    batcher._jobs = Waits(job(), job(), job())  # type: ignore[assignment]
    with batcher.reserved(4):
        assert len(batcher._gather(job())[0]) == 2


def test_the_body_of_an_answer_does_not_wait_for_its_head_to_be_acknowledged(guard: Guard) -> None:
    """Nagle's algorithm would hold it back for the 40 ms after which a client acknowledges what came."""
    _, listener = make_server(guard)
    with listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

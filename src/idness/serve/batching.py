"""Gathers images from many requests into batches for one worker thread, which owns the network."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from idness.detectors.detector import LARGEST
from idness.guard.guard import Guard
from idness.serve.problems import overloaded

SIZES = (1, 2, 4, 8, 16, 32)
"""Batch sizes among which the fastest is looked for."""
PATIENCE = 4.0
"""Seconds that this search may take before the next larger size is not tried."""
ENOUGH = 1.03


@dataclass(frozen=True)
class Answer:
    """Holds what the worker found for one image: the plain record, and the features for its neighbours."""

    record: dict[str, Any]
    features: Tensor


@dataclass(frozen=True)
class Job:
    """Holds an image that waits for its answer."""

    image: Tensor
    answer: Future[Answer]


class Batcher:
    """Runs a guard on whatever waits, up to a batch at a time.

    A batch never waits for company while the network could work: it takes what is there, and lingers only a few
    milliseconds for images that are on their way to it.

    Args:
        guard: the guard; only the worker thread touches its network.
        size: images per batch at most; the fastest size where not given.
        linger: seconds to wait for images that are still decoded.
        room: images that may wait or be worked on.
        told: called with each batch's size.
        failed: called with what went wrong where the network cannot even be warmed up; the worker has ended then.
    """

    def __init__(
        self,
        guard: Guard,
        *,
        size: int | None = None,
        linger: float = 0.002,
        room: int = 512,
        told: Callable[[int], None] | None = None,
        failed: Callable[[Exception], None] | None = None,
    ) -> None:
        self.guard, self.size, self.linger, self.room = guard, size, linger, room
        self._told, self._failed = told or (lambda _: None), failed or (lambda _: None)
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock, self._taken = threading.Lock(), 0
        self.ready = threading.Event()
        self._thread = threading.Thread(target=self._work, name="idness-worker", daemon=True)
        self._stopped = False

    def start(self) -> None:
        """Start the worker; it is ready once it has warmed up."""
        self._thread.start()

    def stop(self) -> None:
        """Answer everything that waits, then end the worker."""
        self._stopped = True
        self._jobs.put(None)
        if self._thread.is_alive():
            self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether the worker runs."""
        return self._thread.is_alive()

    @property
    def waiting(self) -> int:
        """How many images wait or are worked on."""
        return self._taken

    @contextmanager
    def reserved(self, count: int) -> Iterator[None]:
        """Hold places for images while they are decoded and judged; without room, the client is sent away."""
        with self._lock:
            if self._taken + count > self.room or self._stopped:
                raise overloaded(f"{self._taken} images wait")
            self._taken += count
        try:
            yield
        finally:
            with self._lock:
                self._taken -= count

    def submit(self, image: Tensor) -> Future[Answer]:
        """Hand an image to the worker."""
        answer: Future[Answer] = Future()
        self._jobs.put(Job(image, answer))
        return answer

    def _work(self) -> None:
        try:
            self._warm_up()
        except Exception as error:  # a network fails in whatever way it likes
            self._failed(error)
            return
        self.ready.set()
        while (first := self._jobs.get()) is not None:
            batch, last = self._gather(first)
            for group in _by_shape(batch):
                self._run(group)
            if last:
                break

    def _gather(self, first: Job) -> tuple[list[Job], bool]:
        """Take what waits; says also whether the stop sign was among it."""
        batch, size = [first], self.size or 1
        deadline = time.monotonic() + self.linger
        while len(batch) < size:
            try:
                # Who waits for images that nobody has sent yet makes those wait that were sent.
                left = deadline - time.monotonic() if self._taken > len(batch) else 0.0
                job = self._jobs.get(timeout=left) if left > 0 else self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is None:
                return batch, True
            batch.append(job)
        return batch, False

    def _run(self, jobs: Sequence[Job]) -> None:
        # A client that has given up has cancelled its job.
        live = [job for job in jobs if job.answer.set_running_or_notify_cancel()]
        if not live:
            return
        try:
            acts = self.guard.look(torch.stack([job.image for job in live]))
            records = self.guard.decide(acts).records()
        except Exception as error:  # the worker must outlive whatever one batch does
            for job in live:
                job.answer.set_exception(error)
            return
        self._told(len(live))
        for job, record, features in zip(live, records, acts.features.cpu(), strict=True):
            # The lowest float stands for "no score" and is no number that anyone wants to read.
            shown = record if record["score"] > -LARGEST else record | {"score": None}
            job.answer.set_result(Answer(shown, features))

    def _warm_up(self) -> None:
        """Run the network once, and find the batch size of the most images per second where none was given."""
        how = self.guard.preprocessing
        if how is None or how.size is None:
            self.size = self.size or SIZES[3]
            return
        image = torch.rand(how.channels, *how.size)
        self._cost(image, SIZES[3])  # the engine is chosen on as many
        self.guard(image.unsqueeze(0).to(self.guard.split.device))
        if self.size is not None:
            return
        started, costs = time.monotonic(), {}
        for size in SIZES:
            costs[size] = min(self._cost(image, size), self._cost(image, size)) / size
            if time.monotonic() - started > PATIENCE:
                break
        # Of sizes that are about as good, the smallest answers soonest.
        self.size = next(size for size in costs if costs[size] <= ENOUGH * min(costs.values()))

    def _cost(self, image: Tensor, size: int) -> float:
        """Measure one batch: seconds on the processor, which other programs do not lengthen, or on the device's clock."""
        device = self.guard.split.device
        batch = image.expand(size, *image.shape).to(device).contiguous()
        clock = time.process_time if device.type == "cpu" else time.perf_counter
        started = clock()
        self.guard.look(batch).logits.cpu()  # waits for the device
        return clock() - started


def _by_shape(jobs: Sequence[Job]) -> list[list[Job]]:
    by_shape: dict[torch.Size, list[Job]] = {}
    for job in jobs:
        by_shape.setdefault(job.image.shape, []).append(job)
    return list(by_shape.values())

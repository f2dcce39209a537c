"""One worker thread that owns the guard and judges queued images in batches."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from idness.guard.verdict import LOWEST
from idness.serve.schemas import overloaded

if TYPE_CHECKING:
    from idness.guard.guard import Guard
    from idness.guard.onnx import GraphGuard

BATCH = 16
"""Default batch size; the throughput of common networks on a CPU is within a few percent of its best."""
Outcome = tuple[dict[str, Any], Any]
"""The record of one verdict, and the image's features; `None` if the guard was exported."""
Job = tuple[NDArray[Any], Future[Outcome]]


class Worker:
    """A bounded queue of images in front of a thread that judges them.

    A batch consists of what is waiting when the last one is done, so a single image is judged at once.

    Args:
        guard: the guard.
        size: maximum images per batch.
        room: maximum number of reserved places.
        on_batch: called with the size of each batch.
    """

    def __init__(
        self,
        guard: Guard | GraphGuard,
        *,
        size: int = BATCH,
        room: int = 512,
        on_batch: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.guard, self.size, self.room = guard, size, room
        self._on_batch = on_batch
        self.failure: Exception | None = None
        """The error of the network at warm-up, which ends the thread."""
        self.on_failure: Callable[[], None] = lambda: None
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock, self._stopped = threading.Lock(), False
        self.waiting = 0
        """Number of reserved places: images that are being decoded, wait, or are being judged."""
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self._work, name="idness-worker", daemon=True)
        """To be started; `ready` is set after the warm-up."""

    def stop(self) -> None:
        """Judge all waiting images, then end the thread."""
        self._stopped = True
        self._jobs.put(None)
        if self.thread.is_alive():
            self.thread.join()

    @contextmanager
    def reserved(self, count: int) -> Iterator[None]:
        """Reserve places for images while they are decoded and judged."""
        with self._lock:
            if self.waiting + count > self.room or self._stopped:
                raise overloaded(f"{self.waiting} images are waiting")
            self.waiting += count
        try:
            yield
        finally:
            with self._lock:
                self.waiting -= count

    def submit(self, image: NDArray[Any]) -> Future[Outcome]:
        """Queue one image, as pixels or preprocessed; cancel the future to give it up."""
        answer: Future[Outcome] = Future()
        self._jobs.put((image, answer))
        return answer

    def _work(self) -> None:
        try:  # the first client does not wait for the first run, and faults appear at the start
            how = self.guard.preprocessing
            if how is not None and how.size is not None:
                noise = np.random.default_rng(0).integers(0, 256, (self.size, *how.size, how.channels), np.uint8)
                self.guard.judge_array(noise)
        except Exception as error:  # a network can raise anything
            self.failure = error
            self.on_failure()
            return
        self.ready.set()
        batch: list[Job | None] = []
        while None not in batch:
            batch = [self._jobs.get()]
            while len(batch) < self.size and not self._jobs.empty():
                batch.append(self._jobs.get())
            by_shape: dict[tuple[Any, ...], list[Job]] = {}
            for job in filter(None, batch):
                by_shape.setdefault((job[0].dtype, *job[0].shape), []).append(job)
            for group in by_shape.values():
                self._run(group)

    def _run(self, jobs: Sequence[Job]) -> None:
        live = [job for job in jobs if job[1].set_running_or_notify_cancel()]  # without clients that gave up
        if not live:
            return
        try:
            verdict, features = self.guard.judge_array(np.stack([image for image, _ in live]))
        except Exception as error:  # the thread must survive whatever one batch raises
            for _, answer in live:
                answer.set_exception(error)
            return
        self._on_batch(len(live))
        for (_, answer), record, own in zip(live, verdict.records(), features, strict=True):
            shown = record if record["score"] > LOWEST else record | {"score": None}
            answer.set_result((shown, own))

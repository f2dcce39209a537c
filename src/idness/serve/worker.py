"""One worker thread that owns the guard and judges queued images in batches."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from idness.guard.onnx import GraphGuard
from idness.serve.schemas import overloaded

if TYPE_CHECKING:
    from idness.guard.guard import Guard

BATCH = 16
"""Default batch size; the throughput of common networks on a CPU is within a few percent of its best."""
LOWEST = -float(np.finfo(np.float32).max)
"""The score of an image that has none."""
Outcome = tuple[dict[str, Any], Any]
"""The record of one verdict, and the image's features; `None` if the guard was exported."""
Job = tuple[NDArray[Any], Future[Outcome]]


def judge(guard: Guard | GraphGuard, images: NDArray[Any]) -> list[Outcome]:
    """Judge a batch: pixels (N, H, W, C) of uint8, or preprocessed float32 (N, C, H, W)."""
    how, pixels = guard.preprocessing, images.dtype == np.uint8
    assert how is not None  # checked by Service
    if isinstance(guard, GraphGuard):
        records = guard(how.normalize_array(images) if pixels else images).records()
        return [(record, None) for record in records]
    import torch

    inputs = (how.normalize(images) if pixels else torch.from_numpy(images)).to(guard.split.device)
    # What the service preprocesses itself is within the range of the calibration images.
    rejected = {} if pixels or guard.input_range is None else guard.input_range.rejected(inputs)
    acts = guard.look(inputs)
    return list(zip(guard.decide(acts, rejected).records(), acts.features.cpu(), strict=True))


class Worker:
    """A bounded queue of images in front of a thread that judges them.

    A batch consists of what is waiting. It is kept open for a few milliseconds only if images that have a reserved place are
    still being decoded, so a single image is judged at once.

    Args:
        guard: the guard.
        size: maximum images per batch.
        linger: seconds that a batch waits for images that are being decoded.
        room: maximum number of reserved places.
        on_batch: called with the size of each batch.
    """

    def __init__(
        self,
        guard: Guard | GraphGuard,
        *,
        size: int = BATCH,
        linger: float = 0.002,
        room: int = 512,
        on_batch: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.guard, self.size, self.linger, self.room = guard, size, linger, room
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

    def start(self) -> None:
        """Start the thread; `ready` is set after the warm-up."""
        self.thread.start()

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
                judge(self.guard, noise)
        except Exception as error:  # a network can raise anything
            self.failure = error
            self.on_failure()
            return
        self.ready.set()
        while (first := self._jobs.get()) is not None:
            batch, last = self._gather(first)
            by_shape: dict[tuple[Any, ...], list[Job]] = {}
            for job in batch:
                by_shape.setdefault((job[0].dtype, *job[0].shape), []).append(job)
            for group in by_shape.values():
                self._run(group)
            if last:
                break

    def _gather(self, first: Job) -> tuple[list[Job], bool]:
        """Return the next batch, and whether the stop signal ended it."""
        batch, deadline = [first], time.monotonic() + self.linger
        while len(batch) < self.size:
            left = deadline - time.monotonic() if self.waiting > len(batch) else 0.0
            try:
                job = self._jobs.get(timeout=left) if left > 0 else self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is None:
                return batch, True
            batch.append(job)
        return batch, False

    def _run(self, jobs: Sequence[Job]) -> None:
        live = [job for job in jobs if job[1].set_running_or_notify_cancel()]  # without clients that gave up
        if not live:
            return
        try:
            outcomes = judge(self.guard, np.stack([image for image, _ in live]))
        except Exception as error:  # the thread must survive whatever one batch raises
            for _, answer in live:
                answer.set_exception(error)
            return
        self._on_batch(len(live))
        for (_, answer), (record, features) in zip(live, outcomes, strict=True):
            shown = record if record["score"] > LOWEST else record | {"score": None}
            answer.set_result((shown, features))

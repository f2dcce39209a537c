"""The service behind the API: the worker thread that runs the guard, request bodies, decoding and metrics; and sample images."""

from __future__ import annotations

import asyncio
import base64
import os
import queue
import threading
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from fastapi import FastAPI, Request
from numpy.typing import NDArray

from idness.core.errors import DataError, InputError
from idness.data import embedded
from idness.data.decoding import decode_picture, is_animated, pixels_of
from idness.data.preprocess import encoded
from idness.guard.verdict import LOWEST
from idness.serve.monitoring import Monitor
from idness.serve.schemas import ApiError, Limits, Upload, overloaded

if TYPE_CHECKING:
    from idness.guard.guard import Guard
    from idness.guard.onnx import GraphGuard

T = TypeVar("T")
BINS = 48
DECODERS = max(2, os.cpu_count() or 1)
SIDE = 320
"""Maximum side of a returned image, in pixels."""
ROLES = {"id_test": "id", "near": "near", "far": "far"}
"""Roles of the embedded test sets, and their names in the API."""


BATCH = 16
"""Default batch size, at which the throughput of common networks on a CPU is within a few percent of the maximum."""
Outcome = tuple[dict[str, Any], Any]
"""The record of one verdict, and the image's features, `None` for an exported guard."""
Job = tuple[NDArray[Any], Future[Outcome]]


class Worker:
    """A queue with space for `room` images, and a thread that judges them in batches of at most `size`.

    A batch consists of the images that are waiting when the previous one is done, so a single image is judged immediately.
    """

    def __init__(self, guard: Guard | GraphGuard, *, size: int = BATCH, room: int = 512) -> None:
        self.guard, self.size, self.room = guard, size, room
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock, self._stopped = threading.Lock(), False
        self.waiting = 0
        """Number of reserved places: images being decoded, waiting, or being judged."""
        self.thread = threading.Thread(target=self._work, name="idness-worker", daemon=True)
        """Started by the owner of the worker."""

    def warm_up(self) -> None:
        """Judge a batch of noise, so that the first request is not slow and errors appear at startup."""
        how = self.guard.preprocessing
        if how is not None and how.size is not None:
            noise = np.random.default_rng(0).integers(0, 256, (self.size, *how.size, how.channels), np.uint8)
            self.guard.judge_array(noise)

    def stop(self) -> None:
        """Judge all waiting images, then stop the thread."""
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
        """Queue one image, as pixels or preprocessed, and return a future that can be cancelled."""
        answer: Future[Outcome] = Future()
        self._jobs.put((image, answer))
        return answer

    def _work(self) -> None:
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
        live = [job for job in jobs if job[1].set_running_or_notify_cancel()]  # without cancelled ones
        if not live:
            return
        try:
            verdict, features = self.guard.judge_array(np.stack([image for image, _ in live]))
        except Exception as error:  # the thread must survive any error in a batch
            for _, answer in live:
                answer.set_exception(error)
            return
        for (_, answer), record, own in zip(live, verdict.records(), features, strict=True):
            shown = record if record["score"] > LOWEST else record | {"score": None}
            answer.set_result((shown, own))


class Service:
    """A guard with its worker, decoders and metrics; the arguments are those of `serve`."""

    def __init__(self, guard: Guard | GraphGuard, limits: Limits, batch: int = BATCH, name: str = "guard") -> None:
        if guard.groups is None or guard.preprocessing is None:
            raise InputError("serve: the guard must be calibrated on images; create it with idness calibrate")
        self.limits, self.name = limits, name
        self.preprocessing, self.class_names = guard.preprocessing, guard.class_names
        self.input_shape = self.preprocessing.channels, *(self.preprocessing.size or (-1, -1))  # -1 is any size
        self.gallery, self.groups, facts = guard.gallery, guard.groups, guard.describe()
        self.facts = {key: facts[key] for key in ("recalls", "thresholds", "calibration_images", "per_class")} | {
            "network": Path((facts["model"]["spec"] or facts["model"]["class"]).replace("\\", "/")).name,
            "method": guard.method,
            "classes": facts["class_names"],
            "promise": guard.promise(),
            "gallery": 0 if guard.gallery is None else len(guard.gallery),
            "max_images": limits.images,
            "max_bytes": limits.body,
            "max_pixels": limits.pixels,
            "max_request_pixels": limits.request_pixels,
        }
        """The response of /v1/guard."""
        self.monitor = Monitor(self.groups, lambda: self.worker.waiting)
        self.worker = Worker(guard, size=batch, room=limits.queue)
        self.decoders = ThreadPoolExecutor(DECODERS, thread_name_prefix="idness-decode")
        self.stopping = False
        self._held = 0

    def check_ready(self) -> None:
        """Raise if the service does not accept requests."""
        if self.stopping:
            raise ApiError(503, "the server is stopping", {"Retry-After": "1"})

    @asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """Run the worker, and stop it after every accepted request has been answered."""
        self.worker.thread.start()
        try:
            yield
        finally:
            self.stopping = True
            await asyncio.to_thread(self.worker.stop)
            self.decoders.shutdown()

    @asynccontextmanager
    async def body(self, request: Request) -> AsyncIterator[bytes]:
        """Yield the body of a request, within the limits on its size, its time, and the memory of all bodies."""
        limits, headers = self.limits, request.headers
        too_large = ApiError(413, f"the body must be at most {limits.body:,} bytes")
        if headers.get("content-encoding", "identity").lower() not in ("", "identity"):
            raise ApiError(415, "the body must not be compressed; send it without Content-Encoding")
        if int(headers.get("content-length", 0)) > limits.body:
            raise too_large
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(limits.body_seconds):
                async for part in request.stream():
                    size += len(part)
                    self._held += len(part)
                    if size > limits.body:
                        raise too_large
                    if self._held > limits.held:
                        raise overloaded(f"{self._held:,} bytes in memory")
                    parts.append(part)
            yield b"".join(parts)
        except TimeoutError:
            message = f"the body must arrive within {limits.body_seconds:g} seconds"
            raise ApiError(408, message, {"Connection": "close"}) from None
        finally:
            self._held -= size

    async def judge(self, uploads: list[Upload], neighbours: int = 0, picture: bool = False) -> list[dict[str, Any]]:
        """Return a verdict or an error for each image; with `picture`, include the image as the network saw it."""
        with self.worker.reserved(len(uploads)):
            # Pixels are counted from the files' headers, before anything is decoded.
            total, most = sum(pixels_of(content or b"") for _, content in uploads), self.limits.request_pixels
            if total > most:
                raise ApiError(
                    413, f"a request may have at most {most:,} pixels in total, got {total:,}; send fewer images"
                )
            # Requests with many large images must not occupy all decoders.
            turn = asyncio.Semaphore(max(1, DECODERS // 2))
            results = await self._in_time([self._judge(*upload, neighbours, picture, turn) for upload in uploads])
        judged = [result for result in results if "error" not in result]
        if not judged:
            first = f"image 1 ({uploads[0][0][:80]}): {results[0]['error']}"
            others = f"; the other {len(uploads) - 1} cannot be judged either" if len(uploads) > 1 else ""
            raise ApiError(422, first + others, results=results)
        self.monitor.images(judged)
        return results

    async def judge_inputs(self, inputs: NDArray[np.float32]) -> list[dict[str, Any]]:
        """Return the record of each preprocessed image."""
        with self.worker.reserved(len(inputs)):
            outcomes = await self._in_time([asyncio.wrap_future(self.worker.submit(image)) for image in inputs])
        records = [record for record, _ in outcomes]
        self.monitor.images(records)
        return records

    async def _in_time(self, work: Sequence[Awaitable[T]]) -> list[T]:
        try:
            async with asyncio.timeout(self.limits.answer_seconds):
                return await asyncio.gather(*work)
        except TimeoutError:
            raise ApiError(504, f"no answer within {self.limits.answer_seconds:g} seconds; send fewer images") from None

    async def _judge(
        self, name: str, content: bytes | None, neighbours: int, picture: bool, turn: asyncio.Semaphore
    ) -> dict[str, Any]:
        try:
            async with turn:
                loop = asyncio.get_running_loop()
                pixels, animated = await loop.run_in_executor(self.decoders, self._decoded, content)
        except DataError as error:
            return {"image": name, "error": str(error).removeprefix("image: ")}
        record, features = await asyncio.wrap_future(self.worker.submit(pixels))
        shown, kind = encoded(pixels, SIDE) if picture else (b"", "")
        return record | {
            "image": name,
            "first_frame_only": animated,
            "neighbours": self._neighbours(features, neighbours),
            "picture": f"data:{kind};base64,{base64.b64encode(shown).decode()}" if picture else None,
        }

    def _decoded(self, content: bytes | None) -> tuple[NDArray[np.uint8], bool]:
        if content is None:
            raise DataError("is not valid base64; send the bytes of an image in base64")
        pixels = np.array(self.preprocessing.pixels(decode_picture(content, max_pixels=self.limits.pixels)))
        return pixels, is_animated(content)

    def _neighbours(self, features: Any, count: int) -> list[dict[str, Any]]:
        if self.gallery is None or count == 0:
            return []
        found = []
        for index, similarity in self.gallery.nearest(features, count):
            label, score = int(self.gallery.labels[index]), float(self.gallery.scores[index])
            shown = self.class_names[label] if self.class_names else str(label)
            found.append({"index": index, "similarity": similarity, "class": shown, "score": score})
        return found

    def calibration_info(self, label: int | None) -> dict[str, Any]:
        """Return a histogram and quantiles of the calibration scores, for one predicted class if thresholds are per class."""
        groups = self.groups
        if self.facts["per_class"] and label is not None:
            if not 0 <= label < len(groups):
                raise ApiError(404, f"unknown class {label}")
            groups = [groups[label]]
        ordered = np.sort(np.concatenate(groups))
        low = float(ordered[0])
        high = float(ordered[-1]) if ordered[-1] > low else low + 1.0
        counts = np.histogram(ordered, BINS, (low, high))[0]
        ranks = np.linspace(0, len(ordered) - 1, min(len(ordered), 1001)).round().astype(int)
        quantiles = ordered[ranks].tolist()
        return {"images": len(ordered), "low": low, "high": high, "counts": counts.tolist(), "quantiles": quantiles}


@cache
def samples(class_names: tuple[str, ...] | None) -> list[tuple[str, str, bytes, str]]:
    """Return title, role, content and media type of six ID images of an embedded benchmark and two of each OOD set.

    It is the benchmark with these classes or, if there is none, the default one, whose images then have no role.
    """
    own = next((name for name in embedded.NETWORKS if set(embedded.classes(name)) == set(class_names or ())), None)
    benchmark, found = own or embedded.DEFAULT, []
    for role, short in ROLES.items():
        for name in embedded.sets(role, root=embedded.HOME / benchmark):
            data = embedded.open_embedded(f"{benchmark}/{name}")
            for row in range(0, len(data), -(-len(data) // (6 if short == "id" else 2))):
                title = data.classes[data.labels[row]] if data.labels is not None and short == "id" else name
                stored = data.encoded(row)
                content, kind = encoded(data.picture(row)) if stored is None else (stored, "image/avif")
                found.append((title.replace("-", " ").replace("_", " "), short if own else "picture", content, kind))
    return found

"""Judging images for clients: body, decoding, worker and metrics; and the embedded sample images."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator, Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from fastapi import FastAPI, Request
from numpy.typing import NDArray

from idness.core.errors import DataError, InputError, StoreError
from idness.data import embedded
from idness.data.decoding import decode_picture, is_animated, pixels_of
from idness.data.preprocess import encoded
from idness.serve.monitoring import Monitor
from idness.serve.schemas import ApiError, Limits, Upload, overloaded
from idness.serve.worker import BATCH, Worker

if TYPE_CHECKING:
    from idness.guard.guard import Guard
    from idness.guard.onnx import GraphGuard

T = TypeVar("T")
BINS = 48
DECODERS = max(2, os.cpu_count() or 1)
SIDE = 320
"""Longest side of the image that is sent back, in pixels."""
ROLES = {"id_test": "id", "near": "near", "far": "far"}
"""Roles of the embedded test sets, and their names in the API."""


class Service:
    """A guard with its worker, decoders and metrics.

    Args:
        guard: a calibrated guard, or an exported one, which needs no torch.
        limits: limits on requests.
        batch: maximum images per batch.
        name: name of the guard in the Open Inference Protocol.
    """

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
        """What /v1/guard returns."""
        self.monitor = Monitor(self.groups, lambda: self.worker.waiting)
        self.worker = Worker(guard, size=batch, room=limits.queue, on_batch=self.monitor.batch)
        self.decoders = ThreadPoolExecutor(DECODERS, thread_name_prefix="idness-decode")
        self.stopping = False
        self._held = 0

    def check_ready(self) -> None:
        """Raise if requests are not accepted."""
        if self.stopping or not self.worker.ready.is_set():
            raise ApiError(503, "stopping" if self.stopping else "the network is warming up", {"Retry-After": "1"})

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
        """Read a request body within the limits on its size, its time, and the memory of all bodies."""
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
        """Return a verdict or an error for each image.

        Args:
            uploads: the images.
            neighbours: number of nearest calibration images to name.
            picture: whether to return each image as the network saw it.
        """
        with self.worker.reserved(len(uploads)):
            # Pixels are counted from the files' headers, before anything is decoded.
            total, most = sum(pixels_of(content or b"") for _, content in uploads), self.limits.request_pixels
            if total > most:
                raise ApiError(
                    413, f"a request may have at most {most:,} pixels together, got {total:,}; send fewer images"
                )
            # A request of many large images leaves decoders to others.
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
        """Return the verdict on each preprocessed image."""
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
            reason = str(error).removeprefix("image: ")
            # The names of 0.1, until the next release.
            return {"image": name, "name": name, "error": reason, "problem": reason}
        record, features = await asyncio.wrap_future(self.worker.submit(pixels))
        return record | {
            "image": name,
            "name": name,  # until the next release
            "first_frame_only": animated,
            "neighbours": self._neighbours(features, neighbours),
            "picture": _data_url(pixels) if picture else None,
        }

    def _decoded(self, content: bytes | None) -> tuple[NDArray[np.uint8], bool]:
        if content is None:
            raise DataError("is not base64; send the bytes of an image in base64")
        pixels = np.array(self.preprocessing.pixels(decode_picture(content, max_pixels=self.limits.pixels)))
        return pixels, is_animated(content)

    def _neighbours(self, features: Any, count: int) -> list[dict[str, Any]]:
        if self.gallery is None or count == 0:
            return []
        found = []
        for index, similarity in self.gallery.nearest(features.unsqueeze(0), count)[0]:
            label, score = int(self.gallery.labels[index]), float(self.gallery.scores[index])
            shown = self.class_names[label] if self.class_names else str(label)
            found.append({"index": index, "similarity": similarity, "class": shown, "score": score})
        return found

    def calibration_info(self, label: int | None) -> dict[str, Any]:
        """Return histogram and quantiles of the calibration scores, of one predicted class if thresholds are per class."""
        per_class = self.facts["per_class"] and label is not None
        if per_class and not 0 <= (label or 0) < len(self.groups):
            raise ApiError(404, f"no class {label}")
        ordered = np.sort(np.concatenate([self.groups[label or 0]] if per_class else self.groups))
        low, high = float(ordered[0]), float(ordered[-1])
        high = high if high > low else low + 1.0
        counts = np.histogram(ordered, BINS, (low, high))[0]
        ranks = np.linspace(0, len(ordered) - 1, min(len(ordered), 1001)).round().astype(int)
        quantiles = ordered[ranks].tolist()
        return {"images": len(ordered), "low": low, "high": high, "counts": counts.tolist(), "quantiles": quantiles}


def _data_url(pixels: NDArray[np.uint8]) -> str:
    content, kind = encoded(pixels, SIDE)
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


class Sample(NamedTuple):
    """An embedded image to try, with its subject and its role in the embedded benchmark."""

    title: str
    role: str
    content: bytes
    kind: str


@cache
def samples(benchmark: str = embedded.DEFAULT) -> tuple[Sample, ...]:
    """Return up to six ID images of an embedded benchmark and two of each OOD set; empty if the data is not installed."""
    found: list[Sample] = []
    try:
        for role, short in ROLES.items():
            for name in embedded.sets(role, root=embedded.HOME / benchmark):
                data = embedded.open_embedded(f"{benchmark}/{name}")
                title = name.replace("-", " ").replace("_", " ")
                rows = {title: 0, f"{title} 2": len(data) // 2}
                if short == "id" and data.labels is not None:
                    firsts = {data.classes[label]: row for row, label in reversed(list(enumerate(data.labels)))}
                    rows = dict(sorted(firsts.items())[:: -(-len(firsts) // 6)])
                for title, row in rows.items():
                    stored = data.encoded(row)
                    content, kind = encoded(data.picture(row)) if stored is None else (stored, "image/avif")
                    found.append(Sample(title, short, content, kind))
    except StoreError:
        return ()
    return tuple(found)


def benchmark_of(class_names: Sequence[str] | None) -> str | None:
    """Return the embedded benchmark that has the classes of a network, so that it is known which samples are OOD."""
    own = set(class_names or ())
    return next((name for name in embedded.NETWORKS if set(embedded.classes(name)) == own), None)

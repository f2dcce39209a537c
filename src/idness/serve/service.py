"""Judging images for clients: body, decoding, worker and metrics; and the embedded sample images."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from fastapi import FastAPI, Request
from numpy.typing import NDArray
from torch import Tensor

from idness.core.errors import DataError, InputError, StoreError
from idness.data import embedded
from idness.data.decoding import decode_picture, is_animated, pixels_of
from idness.data.preprocess import encoded
from idness.guard.guard import Guard
from idness.serve.monitoring import Monitor
from idness.serve.schemas import ApiError, Limits, Upload, overloaded
from idness.serve.worker import BATCH, Outcome, Worker

T = TypeVar("T")
BINS = 48
DECODERS = max(2, os.cpu_count() or 1)
SIDE = 320
"""Longest side of the image that is sent back, in pixels."""
ROLES = {"id_test": "id", "near": "near", "far": "far"}
"""Roles of the embedded test sets, and their names in the API."""
TRIED = 120
"""Embedded images per role from which the rates are estimated: enough for a rate within nine points."""


class Service:
    """A guard with its worker, decoders and metrics.

    Args:
        guard: a calibrated guard.
        limits: limits on requests.
        batch: maximum images per batch.
    """

    def __init__(self, guard: Guard, limits: Limits, batch: int = BATCH) -> None:
        if guard.calibration is None or guard.preprocessing is None:
            raise InputError("serve: the guard must be calibrated on images; create it with idness calibrate")
        self.guard, self.limits, self.calibration = guard, limits, guard.calibration.to("cpu")
        self.preprocessing = guard.preprocessing
        self.monitor = Monitor(self.calibration)
        self.worker = Worker(
            guard, size=batch, room=limits.queue, on_batch=self.monitor.batch, on_failure=self._on_failure
        )
        self.monitor.watch_queue(lambda: self.worker.waiting)
        self.decoders = ThreadPoolExecutor(DECODERS, thread_name_prefix="idness-decode")
        self.stopping = False
        self.failure: Exception | None = None
        self.end: Callable[[], None] = lambda: None
        """Ends the server; called if the network fails at warm-up."""
        self._held = 0
        self._rates: dict[str, list[float]] = {}
        self._trying = asyncio.Lock()

    def _on_failure(self, error: Exception) -> None:
        self.failure = error
        self.end()

    @asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """Run the worker, and stop it after every accepted request has been answered."""
        self.worker.start()
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
            except TimeoutError:
                message = f"the body must arrive within {limits.body_seconds:g} seconds"
                raise ApiError(408, message, {"Connection": "close"}) from None
            yield b"".join(parts)
        finally:
            self._held -= size

    async def judge(self, uploads: list[Upload], neighbours: int = 0, picture: bool = False) -> list[dict[str, Any]]:
        """Return a verdict or a problem for each image.

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
                    413,
                    f"the images of a request must have at most {most:,} pixels together, got {total:,}; send fewer",
                )
            # A request of many large images leaves decoders to others.
            turn = asyncio.Semaphore(max(1, DECODERS // 2))
            results = await self._in_time([self._judge(*upload, neighbours, picture, turn) for upload in uploads])
        judged = [result for result in results if "problem" not in result]
        if not judged:
            first = f"image 1 ({uploads[0][0][:80]}): {results[0]['problem']}"
            others = f"; the other {len(uploads) - 1} cannot be judged either" if len(uploads) > 1 else ""
            raise ApiError(422, first + others, results=results)
        self.monitor.images(judged)
        return results

    async def rates(self) -> dict[str, list[float]]:
        """Return the p-values of embedded images by role; empty if the network has other classes."""
        async with self._trying:
            if not await asyncio.to_thread(has_embedded_classes, self.guard.class_names):
                return {}
            for role, images in (await asyncio.to_thread(trial_images)).items():
                found = self._rates.setdefault(role, [])
                while len(found) < len(images):
                    part = images[len(found) : len(found) + self.limits.images]
                    tensors = [self.preprocessing(image) for _, image in part]
                    with self.worker.reserved(len(part)):
                        answers = await self._in_time([self._answer(tensor) for tensor in tensors])
                    found += [record["p_value"] for record, _ in answers]
        return self._rates

    async def _in_time(self, work: list[Coroutine[Any, Any, T]]) -> list[T]:
        try:
            async with asyncio.timeout(self.limits.answer_seconds):
                return await asyncio.gather(*work)
        except TimeoutError:
            raise ApiError(504, f"no answer within {self.limits.answer_seconds:g} seconds; send fewer images") from None

    async def _answer(self, image: Tensor) -> Outcome:
        return await asyncio.wrap_future(self.worker.submit(image))

    async def _judge(
        self, name: str, content: bytes | None, neighbours: int, picture: bool, turn: asyncio.Semaphore
    ) -> dict[str, Any]:
        try:
            async with turn:
                pixels, image, animated = await asyncio.get_running_loop().run_in_executor(
                    self.decoders, self._decoded, content
                )
        except DataError as error:
            return {"name": name, "problem": str(error).removeprefix("image: ")}
        record, features = await self._answer(image)
        return record | {
            "name": name,
            "first_frame_only": animated,
            "neighbours": self._neighbours(features, neighbours),
            "picture": _data_url(pixels) if picture else None,
        }

    def _decoded(self, content: bytes | None) -> tuple[NDArray[np.uint8], Tensor, bool]:
        if content is None:
            raise DataError("is not base64; send the bytes of an image in base64")
        pixels = np.array(self.preprocessing.pixels(decode_picture(content, max_pixels=self.limits.pixels)))
        return pixels, self.preprocessing.normalize(pixels), is_animated(content)

    def _neighbours(self, features: Tensor, count: int) -> list[dict[str, Any]]:
        gallery, names = self.guard.gallery, self.guard.class_names
        if gallery is None or count == 0:
            return []
        return [
            {
                "index": index,
                "similarity": similarity,
                "class": names[int(gallery.labels[index])] if names else str(int(gallery.labels[index])),
                "score": float(gallery.scores[index]),
            }
            for index, similarity in gallery.nearest(features.unsqueeze(0), count)[0]
        ]

    def calibration_info(self, label: int | None) -> dict[str, Any]:
        """Return histogram and quantiles of the calibration scores, of one predicted class if thresholds are per class."""
        scores = self.calibration.scores
        if label is not None and self.calibration.per_class:
            if not 0 <= label < len(self.calibration.sizes):
                raise ApiError(404, f"no class {label}")
            sizes = self.calibration.sizes.tolist()
            scores = scores[sum(sizes[:label]) : sum(sizes[: label + 1])]
        ordered = scores.sort().values.double()
        low, high = float(ordered[0]), float(ordered[-1])
        high = high if high > low else low + 1.0
        counts = torch.histc(ordered, BINS, low, high)
        ranks = torch.linspace(0, len(ordered) - 1, min(len(ordered), 1001)).round().long()
        return {
            "images": len(ordered),
            "low": low,
            "high": high,
            "counts": [int(count) for count in counts],
            "quantiles": ordered[ranks].tolist(),
        }


def _data_url(pixels: NDArray[np.uint8]) -> str:
    content, kind = encoded(pixels, SIDE)
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


class Sample(NamedTuple):
    """An embedded image to try, with its subject and its role in the embedded benchmark."""

    title: str
    role: str
    png: bytes


@cache
def samples() -> tuple[Sample, ...]:
    """Return one image of each embedded ID class, and two of each OOD set; empty if the data is not installed."""
    found: list[Sample] = []
    for role, images in trial_images().items():
        for title in dict.fromkeys(title for title, _ in images):
            same = [image for each, image in images if each == title][: 1 if role == "id" else 2]
            found += [Sample(title, role, encoded(image)[0]) for image in same]
    return tuple(found)


def has_embedded_classes(class_names: Sequence[str] | None) -> bool:
    """Whether a network has the classes of the embedded data, so that it is known which samples are OOD."""
    return {sample.title for sample in samples() if sample.role == "id"} == set(class_names or ())


@cache
def trial_images() -> dict[str, list[tuple[str, NDArray[np.uint8]]]]:
    """Return embedded images of each role with their titles, evenly from its data sets; empty if not installed."""
    found: dict[str, list[tuple[str, NDArray[np.uint8]]]] = {}
    try:
        for role, short in ROLES.items():
            names = embedded.sets(role)
            for name in names:
                data, each = embedded.load(name), TRIED // len(names)
                title = data.name.replace("-", " ").replace("_", " ")
                for row in range(0, len(data), len(data) // each)[:each]:
                    if short == "id" and data.labels is not None:
                        title = data.classes[data.labels[row]]
                    found.setdefault(short, []).append((title, data.images[row]))
    except StoreError:
        return {}
    return found

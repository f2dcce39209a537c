"""What the routes share: a guard with its worker, its decoders and its counters."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from fastapi import FastAPI
from numpy.typing import NDArray
from torch import Tensor

from idness.core.errors import DataError, InputError
from idness.data.decoding import decode_picture, is_animated, pixels_of
from idness.data.preprocess import encoded
from idness.guard.guard import Guard
from idness.serve.batching import Answer, Batcher
from idness.serve.limits import Limits
from idness.serve.monitoring import Monitor
from idness.serve.problems import Problem
from idness.serve.samples import of_embedded_classes, trial
from idness.serve.uploads import Upload

T = TypeVar("T")
BINS = 48
DECODERS = max(2, os.cpu_count() or 1)
SIDE = 320
"""The longest side of the picture that is sent back."""


@dataclass(frozen=True)
class Wish:
    """Says what a client wants to know of each image beside the verdict."""

    neighbours: int = 0
    picture: bool = False


@dataclass(frozen=True)
class _Decoded:
    """Holds an image as the network takes it, and what a person is shown of it."""

    image: Tensor
    animated: bool
    picture: str | None


class Service:
    """Holds what the routes share: the guard, its worker, the decoders and the counters."""

    def __init__(self, guard: Guard, limits: Limits, batch: int | None = None) -> None:
        if guard.calibration is None or guard.preprocessing is None:
            raise InputError(
                "serve: the guard must be calibrated and know its preprocessing; make it with idness calibrate"
            )
        self.guard, self.limits, self.calibration = guard, limits, guard.calibration.to("cpu")
        self.monitor = Monitor(self.calibration)
        self.batcher = Batcher(guard, size=batch, room=limits.queue, told=self.monitor.batch, failed=self._give_up)
        self.monitor.watch_queue(lambda: self.batcher.waiting)
        self.decoders = ThreadPoolExecutor(DECODERS, thread_name_prefix="idness-decode")
        self.stopping = False
        self.failure: Exception | None = None
        self.end: Callable[[], None] = lambda: None
        """What ends the server that this service is part of."""
        self._rates: dict[str, list[float]] = {}
        self._trying = asyncio.Lock()

    def _give_up(self, error: Exception) -> None:
        self.failure = error
        self.end()

    @asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """Start the worker, and stop it when every accepted request has been answered."""
        self.batcher.start()
        try:
            yield
        finally:
            self.stopping = True
            await asyncio.to_thread(self.batcher.stop)
            self.decoders.shutdown()

    async def judge(self, uploads: list[Upload], wish: Wish) -> list[dict[str, Any]]:
        """Decode and judge images within the time that a request has; each has its verdict, or its problem."""
        with self.batcher.reserved(len(uploads)):
            self._check_pixels(uploads)
            # As many at a time as leave a decoder for others: a request of large images must not hold up small ones.
            turn = asyncio.Semaphore(max(1, DECODERS // 2))
            results = await self._in_time([self._judge(upload, wish, turn) for upload in uploads])
        judged = [result for result in results if "problem" not in result]
        if not judged:
            first = f"image 1 ({uploads[0].name[:80]}): {results[0]['problem']}"
            others = f"; none of the other {len(uploads) - 1} can be judged either" if len(uploads) > 1 else ""
            raise Problem(422, first + others, more={"results": results})
        self.monitor.images(judged)
        return results

    async def rates(self) -> dict[str, list[float]]:
        """Judge embedded images, once, and give the p-values of each role."""
        assert self.guard.preprocessing is not None
        async with self._trying:
            if not await asyncio.to_thread(of_embedded_classes, self.guard.class_names):
                return {}
            for role, images in (await asyncio.to_thread(trial)).items():
                found = self._rates.setdefault(role, [])
                while len(found) < len(images):
                    part = images[len(found) : len(found) + self.limits.images]
                    tensors = [self.guard.preprocessing(image) for image in part]
                    with self.batcher.reserved(len(part)):
                        answers = await self._in_time([self._answer(tensor) for tensor in tensors])
                    found += [answer.record["p_value"] for answer in answers]
        return self._rates

    async def _in_time(self, work: list[Coroutine[Any, Any, T]]) -> list[T]:
        try:
            async with asyncio.timeout(self.limits.answer_seconds):
                return await asyncio.gather(*work)
        except TimeoutError:
            raise Problem(504, f"no answer within {self.limits.answer_seconds:g} seconds; send fewer images") from None

    async def _answer(self, image: Tensor) -> Answer:
        return await asyncio.wrap_future(self.batcher.submit(image))

    def _check_pixels(self, uploads: list[Upload]) -> None:
        """Refuse a request whose images unpack to too much together, before any of them is unpacked."""
        total, most = sum(pixels_of(upload.content or b"") for upload in uploads), self.limits.request_pixels
        if total > most:
            raise Problem(
                413, f"the images of a request must have at most {most:,} pixels together, got {total:,}; send fewer"
            )

    async def _judge(self, upload: Upload, wish: Wish, turn: asyncio.Semaphore) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        try:
            async with turn:
                decoded = await loop.run_in_executor(self.decoders, self._decoded, upload, wish.picture)
        except DataError as error:
            return {"name": upload.name, "problem": str(error).removeprefix("image: ")}
        answer = await self._answer(decoded.image)
        return answer.record | {
            "name": upload.name,
            "first_frame_only": decoded.animated,
            "neighbours": self.neighbours(answer.features, wish.neighbours),
            "picture": decoded.picture,
        }

    def _decoded(self, upload: Upload, picture: bool) -> _Decoded:
        how = self.guard.preprocessing
        assert how is not None
        if upload.content is None:
            raise DataError("is not base64; send the bytes of an image in base64")
        pixels = np.array(how.pixels(decode_picture(upload.content, max_pixels=self.limits.pixels)))
        return _Decoded(how.normalize(pixels), is_animated(upload.content), _data_url(pixels) if picture else None)

    def neighbours(self, features: torch.Tensor, count: int) -> list[dict[str, Any]]:
        """Describe the nearest calibration images."""
        gallery = self.guard.gallery
        if gallery is None or count == 0:
            return []
        return [
            {
                "index": index,
                "similarity": similarity,
                "class": self._name(int(gallery.labels[index])),
                "score": float(gallery.scores[index]),
            }
            for index, similarity in gallery.nearest(features.unsqueeze(0), count)[0]
        ]

    def calibration_info(self, label: int | None) -> dict[str, Any]:
        """Describe the calibration scores, all or those of one predicted class, by histogram and quantiles."""
        scores = self.calibration.scores
        if label is not None and self.calibration.per_class:
            if not 0 <= label < len(self.calibration.sizes):
                raise Problem(404, f"there is no class {label}")
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

    def _name(self, label: int) -> str:
        return self.guard.class_names[label] if self.guard.class_names else str(label)


def _data_url(pixels: NDArray[np.uint8]) -> str:
    content, kind = encoded(pixels, SIDE)
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"

"""Reading of batches of images ahead of the network; images that cannot be read are skipped, with the reason."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from idness.core.errors import DataError, OptionError
from idness.data.duplicates import DIGEST, digests
from idness.data.preprocess import Preprocessing
from idness.data.sets import ImageSet, Picture, select

AHEAD = 2
"""Number of batches that are read before they are needed."""


@dataclass
class Batch:
    """The readable images of one range of a set, and the reasons why the others could not be read."""

    start: int
    stop: int
    pixels: NDArray[np.uint8]
    index: NDArray[np.int64]
    digests: NDArray[np.uint8]
    skipped: list[tuple[int, str]] = field(default_factory=list)


_LIMIT: dict[str, int] = {}
"""The number of threads that decode images, if `limit_threads` was called."""
Part = tuple[list[int], list[NDArray[np.uint8]], list[bytes], list[tuple[int, str]]]
"""The positions, pixels and digests of images, and the reasons why others could not be read."""


def limit_threads(count: int | None) -> None:
    """Limit this process to `count` threads, unless `None`: a quarter, at least one, decode images; the others run the network."""
    if count is None:
        return
    if count < 1:
        raise OptionError(f"threads must be at least 1, got {count}")
    _LIMIT["decoders"] = max(1, count // 4)
    network = max(1, count - _LIMIT["decoders"])
    os.environ["OMP_NUM_THREADS"] = str(network)  # for torch if it is not imported yet, and for child processes
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(network)


def read_batches(
    images: ImageSet, preprocessing: Preprocessing, spans: Iterable[tuple[int, int]], *, workers: int | None = None
) -> Iterator[Batch]:
    """Yield a batch for each span (start, stop), in order, reading the next ones while the last one is used.

    Images are resized and cropped but not normalised, so that batches stay small. `workers` is the number of threads that decode; a
    set that must be read in order uses one.
    """
    threads = (workers or _LIMIT.get("decoders") or min(8, os.cpu_count() or 1)) if images.parallel else 1
    waiting: deque[tuple[int, int, list[Future[Part]]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for start, stop in spans:
                step = 8 if images.parallel else stop - start
                parts = [range(low, min(low + step, stop)) for low in range(start, stop, step)]
                waiting.append((start, stop, [pool.submit(_read, images, preprocessing, part) for part in parts]))
                if len(waiting) > AHEAD:
                    yield _batch(images, *waiting.popleft())
            while waiting:
                yield _batch(images, *waiting.popleft())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def read_sample(
    images: ImageSet, preprocessing: Preprocessing, count: int, *, workers: int | None = None
) -> tuple[ImageSet, Batch]:
    """Return a sample of a set, and its images as one batch; evenly spaced, or the first images of a set that is read in order."""
    if len(images) == 0:
        raise DataError(f"{images.source}: must contain at least one image, got none; check the folder or file")
    part = select(images, {"sample": count} if images.parallel else {"rows": [0, min(count, len(images))]})
    [batch] = read_batches(part, preprocessing, [(0, len(part))], workers=workers)
    if not len(batch.pixels):
        raise DataError(f"{images.source}: none of its images can be read; the first: {batch.skipped[0][1]}")
    return part, batch


def _read(images: ImageSet, preprocessing: Preprocessing, part: range) -> Part:
    index, pixels, skipped = list[int](), list[NDArray[np.uint8]](), list[tuple[int, str]]()

    def pictures() -> Iterator[Picture]:
        for place in part:
            try:
                picture = images.picture(place)
                pixels.append(preprocessing.pixels(picture))
            except DataError as error:
                skipped.append((place, str(error)))
            else:
                index.append(place)
                yield picture

    return index, pixels, list(digests(pictures())), skipped


def _batch(images: ImageSet, start: int, stop: int, parts: list[Future[Part]]) -> Batch:
    index, pixels, known, skipped = (
        list(chain(*each)) for each in zip(*(part.result() for part in parts), strict=True)
    )
    shapes = sorted({image.shape for image in pixels})
    if len(shapes) > 1:
        sizes = " and ".join(f"{shape[0]} x {shape[1]}" for shape in shapes[:2])
        raise DataError(f"{images.source}: images must have one size after preprocessing, got {sizes}; set crop")
    return Batch(
        start,
        stop,
        np.stack(pixels) if pixels else np.zeros((0, 1, 1, 3), np.uint8),
        np.array(index, dtype=np.int64),
        np.frombuffer(b"".join(known), np.uint8).reshape(-1, DIGEST),
        skipped,
    )

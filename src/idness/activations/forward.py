"""Runs a network over a set of images: the one way from pictures to activations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from idness.activations.prerelu import Capture, Rectifier, capture
from idness.core.errors import DataError
from idness.core.progress import Listener
from idness.core.types import Activations, Head, InputEditor
from idness.data import ActivationsSet, Batch, ImageSet, read_batches
from idness.data.duplicates import EXACT, common, near
from idness.data.preprocess import THUMBNAIL, thumbnail
from idness.data.sets import select
from idness.networks.open import Network

Item = TypeVar("Item")


@dataclass(frozen=True, eq=False)
class SetActivations:
    """Holds what a network made of one set, in memory.

    Labels are there where they are the network's classes. `images` is the set itself, none where it is activations, and `index`
    has the place of each row in it. `pre` is what enters the final ReLU, pooled, where it was asked for and there is one.
    `skipped` has the place of each image that cannot be read, and why; `repeated` counts those that were there already.
    `digests` has the hash of each image's pixels.
    """

    name: str
    acts: Activations
    images: ImageSet | None = None
    index: NDArray[np.int64] | None = None
    pre: Tensor | None = None
    rectifier: Rectifier | None = None
    skipped: Sequence[tuple[int, str]] = field(default_factory=list)
    repeated: int = 0
    digests: NDArray[np.uint8] | None = None

    def shared_with(self, other: SetActivations) -> int:
        """Count the images that are in another set too, by the hash of their pixels."""
        return 0 if self.digests is None or other.digests is None else common(self.digests, other.digests)

    def near_to(self, other: SetActivations) -> int:
        """Count the images of which a near copy is in another set: of another size, or with a little noise."""
        if self.digests is None or other.digests is None or self.images is None or other.images is None:
            return 0
        assert self.index is not None
        assert other.index is not None
        return near(self.digests, other.digests, (self.images, other.images), (self.index, other.index))

    def thumbnails(self, rows: NDArray[np.int64], size: int = THUMBNAIL) -> list[NDArray[np.uint8]]:
        """Read the images of some rows, no larger than `size`."""
        if self.images is None or self.index is None:
            raise DataError(f"{self.name}: is activations, so there are no images to show")
        return [np.asarray(thumbnail(self.images.picture(int(self.index[row])), size)) for row in rows]


def run_images(
    network: Network,
    images: ImageSet,
    *,
    spans: Iterable[tuple[int, int]] | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
    distinct: bool = False,
    pre_relu: bool = False,
    edit: Callable[[Tensor, int], Tensor] | None = None,
    edit_with: InputEditor | None = None,
    listener: Listener | None = None,
) -> Iterator[tuple[Batch, Capture | None]]:
    """Read images, bring them to what the network expects and run them, a batch at a time, in order.

    Each batch is given with its activations, or with none where no image of it can be read.

    Args:
        network: what they run through.
        images: the set.
        spans: the ranges to run, each one batch; the whole set if not given.
        batch_size: how many images the network sees at once, where no ranges are given; what suits the network if it is not.
        workers: how many threads decode images.
        distinct: whether to leave out images that were there before.
        pre_relu: whether to keep what enters the final ReLU.
        edit: changes the network's input; it gets a batch and the place of its first image.
        edit_with: changes the input for a second look, as `Detector.input_edit` does; not with `pre_relu`.
        listener: hears of every image; the phase is the caller's, who may run several sets in one.
    """
    hear, seen, how = listener or Listener(), set[bytes](), network.preprocessing
    feeder = Feeder(network.split.device)

    def read() -> Iterator[tuple[Batch, Tensor | None]]:
        ranges = spans or spans_of(len(images), batch_size or network.batch)
        for batch in read_batches(images, how, ranges, workers=workers):
            network.check_size(images.source, batch.pixels)
            kept = _fresh(batch, seen) if distinct else batch
            yield kept, feeder.inputs(kept.pixels, how.normalize) if len(kept.pixels) else None

    for batch, plain in feeder.ahead(read()):
        found = None
        if plain is not None:
            inputs = plain if edit is None else edit(plain, batch.start)
            if pre_relu:
                found = capture(network.split, inputs)
            else:
                acts = network.split.split(inputs, precision=network.precision.used, edit_with=edit_with)
                found = Capture(acts.to("cpu"), None, None)
        hear.advance(batch.stop - batch.start)
        yield batch, found


def collect(
    network: Network | None,
    data: ImageSet | ActivationsSet,
    *,
    name: str = "",
    limit: int | None = None,
    distinct: bool = False,
    pre_relu: bool = False,
    edit: Callable[[Tensor, int], Tensor] | None = None,
    edit_with: InputEditor | None = None,
    listener: Listener | None = None,
) -> SetActivations:
    """Run a set through a network and keep its activations in memory, or read it where it is activations.

    No network is needed for the latter. `name` is what the set is called, where not by its source, and `limit` the most images
    used, evenly picked; all else is as in `run_images`.
    """
    name = name or data.source
    if isinstance(data, ActivationsSet):
        if network is not None:
            head = network.split.head
            data.head = Head(head.weight.cpu(), head.offset.cpu())
        acts = Activations.concat(data.batches(4096))
        return SetActivations(name, acts[:: 1 if limit is None else max(1, -(-len(acts) // limit))])
    if network is None:
        raise DataError(f"{name}: is a set of images, so a network is needed")
    images = data if limit is None else select(data, {"sample": limit})
    hear = listener or Listener()
    hear.phase(name, len(images))
    parts: list[Capture] = []
    places, digests, skipped = [], [], []
    run = run_images(
        network, images, distinct=distinct, pre_relu=pre_relu, edit=edit, edit_with=edit_with, listener=hear
    )
    for batch, found in run:
        skipped += batch.skipped
        if found is not None:
            parts.append(found)
            places.append(batch.index)
            digests.append(batch.digests)
    if not parts:
        why = skipped[0][1] if skipped else "it is empty"
        raise DataError(f"{name}: none of its {len(images)} images can be read; the first: {why}")
    whole, index = Capture.concat(parts), np.concatenate(places)
    acts = whole.acts
    labels = network.labels_of(images)
    if labels is not None:
        acts = replace(acts, labels=labels[torch.from_numpy(index)])
    repeated = len(images) - len(index) - len(skipped)
    return SetActivations(
        name, acts, images, index, whole.pre, whole.rectifier, skipped, repeated, np.concatenate(digests)
    )


class Feeder:
    """Copies pixels to a network's device and normalises them there.

    On a GPU, pixels are copied as bytes from pinned memory in a stream of their own, so that the copy of one batch overlaps with the
    network's work on the one before. On the CPU nothing is copied.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def inputs(self, pixels: NDArray[np.uint8], normalize: Callable[[NDArray[np.uint8] | Tensor], Tensor]) -> Tensor:
        """Copy a batch and normalise it."""
        if self.stream is None:
            return normalize(pixels)
        with self._beside():
            held = self._pinned(torch.from_numpy(np.ascontiguousarray(pixels)))
            return normalize(held.to(self.device, non_blocking=True))

    def ahead(self, items: Iterable[tuple[Item, Tensor | None]]) -> Iterator[tuple[Item, Tensor | None]]:
        """Yield items with their inputs in order, each after the copy of the next one has started; on the CPU one by one."""
        if self.stream is None:
            yield from items
            return
        waiting: tuple[Item, Tensor | None] | None = None
        for item in items:
            if waiting is not None:
                yield self._arrived(waiting)
            waiting = item
        if waiting is not None:
            yield self._arrived(waiting)

    def _arrived(self, item: tuple[Item, Tensor | None]) -> tuple[Item, Tensor | None]:
        """Let the network wait for a copy, and keep its memory until the network is done with it."""
        if item[1] is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_stream(self.stream)
            item[1].record_stream(current)
        return item

    def _beside(self) -> Any:
        return torch.cuda.stream(self.stream) if self.device.type == "cuda" else nullcontext()

    def _pinned(self, pixels: Tensor) -> Tensor:
        return pixels.pin_memory() if self.device.type == "cuda" else pixels


def spans_of(count: int, size: int, start: int = 0) -> list[tuple[int, int]]:
    """Cut the places from `start` to `count` into ranges of at most `size`."""
    return [(low, min(low + size, count)) for low in range(start, count, size)]


def _fresh(batch: Batch, seen: set[bytes]) -> Batch:
    """Leave out the images of a batch that were seen before, by the hash of their pixels."""
    rows = []
    for row, digest in enumerate(batch.digests[:, :EXACT]):
        if digest.tobytes() not in seen:
            seen.add(digest.tobytes())
            rows.append(row)
    return replace(batch, pixels=batch.pixels[rows], index=batch.index[rows], digests=batch.digests[rows])

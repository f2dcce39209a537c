"""Judges image files with a guard, many at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from idness.activations.forward import run_images
from idness.core.progress import Listener
from idness.data import FileSet, ImageSet
from idness.data.open import named_set
from idness.data.sets import SET_SUFFIXES
from idness.data.sets import find_images as find_images
from idness.guard.guard import Guard
from idness.networks.open import Network


def judge_images(
    guard: Guard, paths: Iterable[Path], *, batch: int | None = None, listener: Listener | None = None
) -> Iterator[dict[str, Any]]:
    """Judge image files one after another; a file that cannot be read gets its reason and no verdict."""
    size = batch or _network(guard).batch
    for names, images in _sets(paths, size):
        for name, record in zip(names, judge_set(guard, images, batch=size, listener=listener), strict=True):
            yield {"image": name} | record


def judge_set(
    guard: Guard, images: ImageSet, *, batch: int | None = None, listener: Listener | None = None
) -> Iterator[dict[str, Any]]:
    """Judge the images of a set one after another; one that cannot be read gets its reason and no verdict."""
    network, device = _network(guard), guard.split.device
    # Without a fixed size each picture is a batch of its own.
    fixed = guard.preprocessing is not None and guard.preprocessing.size is not None
    size = (batch or network.batch) if fixed else 1
    run = run_images(network, images, batch_size=size, edit_with=guard.detector.input_edit, listener=listener)
    for read, found in run:
        records = iter([] if found is None else guard.decide(found.acts.to(device)).records())
        unread = dict(read.skipped)
        for index in range(read.start, read.stop):
            yield {"error": unread[index]} if index in unread else next(records)


def _network(guard: Guard) -> Network:
    return Network(guard.split, guard.preprocessing)


def _sets(paths: Iterable[Path], batch: int) -> Iterator[tuple[list[str], ImageSet]]:
    """Put image files together, as many as a batch; a file that holds many images is a set of its own."""
    for many, some in groupby(paths, key=lambda path: path.suffix.lower() in SET_SUFFIXES):
        if many:
            for path in some:
                images, before = named_set(str(path))
                yield [f"{before}{images.item(place)}" for place in range(len(images))], images
        else:
            while chunk := [str(path) for path in islice(some, batch)]:
                yield chunk, FileSet(Path(), chunk, "images")

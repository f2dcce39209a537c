"""Judges image files with a guard, many at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from idness.activations.extract import run_images
from idness.core.progress import Listener
from idness.data import ImageSet
from idness.data.open import named_set
from idness.data.sets import SET_SUFFIXES, file_sets
from idness.data.sets import find_images as find_images
from idness.guard.guard import Guard
from idness.networks.open import Network


def judge_images(
    guard: Guard, paths: Iterable[Path], *, batch: int | None = None, listener: Listener | None = None
) -> Iterator[dict[str, Any]]:
    """Judge image files one after another; a file that cannot be read gets its reason and no verdict."""
    size = _batch(guard, batch)
    for images, prefix in _sets(paths, size):
        for place, record in enumerate(judge_set(guard, images, batch=size, listener=listener)):
            yield {"image": f"{prefix}{images.item(place)}"} | record


def judge_set(
    guard: Guard, images: ImageSet, *, batch: int | None = None, listener: Listener | None = None
) -> Iterator[dict[str, Any]]:
    """Judge the images of a set one after another; one that cannot be read gets its reason and no verdict."""
    run = run_images(
        Network(guard.split, guard.preprocessing),
        images,
        batch_size=_batch(guard, batch),
        edit_with=guard.detector.input_edit,
        listener=listener,
    )
    for read, acts in run:
        records = iter(guard.decide(acts.to(guard.split.device)).records() if len(acts) else [])
        unread = dict(read.skipped)
        for index in range(read.start, read.stop):
            yield {"error": unread[index]} if index in unread else next(records)


def _batch(guard: Guard, wanted: int | None) -> int:
    """Return the batch size; without a fixed size of the input each image is a batch of its own."""
    how = guard.preprocessing
    return (wanted or Network(guard.split, how).batch) if how is not None and how.size is not None else 1


def _sets(paths: Iterable[Path], size: int) -> Iterator[tuple[ImageSet, str]]:
    """Yield image files as sets with a prefix for their names; a file with many images is a set of its own."""
    for many, some in groupby(paths, key=lambda path: path.suffix.lower() in SET_SUFFIXES):
        if many:
            yield from (named_set(str(path)) for path in some)
        else:
            # A list is read ahead; paths that arrive one by one are judged as they arrive.
            count = len(paths) if isinstance(paths, Sequence) else size
            yield from ((images, "") for images in file_sets(some, count))

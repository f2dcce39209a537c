"""Judges a set of any size into a table on disk, span by span."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from idness.activations.extract import spans_of
from idness.activations.store import FeatureStore
from idness.core.documents import packed
from idness.core.errors import DataError, InputError
from idness.core.files import key_of, sha256, sha256_of
from idness.core.progress import Listener
from idness.data import ArraySet, ImageSet, Preprocessing
from idness.data.activations import SHARD
from idness.data.batches import read_sample
from idness.data.sets import stamp_of
from idness.guard.file import describe
from idness.guard.graph import BATCH, GraphGuard
from idness.guard.guard import Guard
from idness.guard.judge import judge_set
from idness.guard.table import Part, VerdictTable
from idness.networks.engines import FEW, ChosenEngine, EngineRunner, batch_for
from idness.networks.modules import as_input


class Judging(Protocol):
    """Judges the images of a set one after another."""

    def __call__(
        self, images: ImageSet, *, batch: int | None = None, listener: Listener | None = None
    ) -> Iterator[dict[str, Any]]: ...


@dataclass(frozen=True)
class Scoring:
    """Holds what judges, the set that is judged, and the table that the verdicts go to.

    `guard` is the hash of the guard, `identity` that of all that decides a verdict but the image; `sample` has the images on which
    the engine was made, as they are read: another process makes the same engine of them.
    """

    judge: Judging
    images: ImageSet
    table: VerdictTable
    guard: str
    identity: str
    batch: int
    engine: ChosenEngine | None
    sample: NDArray[np.uint8]
    recalls: tuple[float, ...] = ()

    def spans(self) -> Iterator[tuple[int, int, int, str]]:
        """Divide the set: number, first and last place, and key of each part of the table."""
        memory = FeatureStore().stamps
        for number, (start, stop) in enumerate(spans_of(len(self.images), SHARD)):
            yield number, start, stop, key_of(self.identity, str(start), stamp_of(self.images, start, stop, memory))

    def about(self) -> dict[str, Any]:
        """Say what the table was made by."""
        engine = None if self.engine is None else {"used": self.engine.used, "version": self.engine.version}
        return {"guard": self.guard, "identity": self.identity, "batch": self.batch, "engine": engine}


def prepare_scoring(
    guard: Guard | GraphGuard, images: ImageSet, folder: str | Path, *, batch: int | None = None
) -> Scoring:
    """Settle on how a set is judged: by which engine, in batches of how many images."""
    if len(images) == 0:
        raise DataError(f"{images.source}: must hold at least one image, got none; check the folder or file")
    if isinstance(guard, GraphGuard):
        return replace(scoring_as(guard, folder, None, _none(), batch or BATCH), images=images)
    sample = _sample(images, guard.preprocessing)
    chosen = None
    if len(sample) and guard.split.runner is not None:
        chosen = guard.split.runner.prepare(guard.split, _inputs(guard, sample))
    size = batch or (batch_for(sample.shape[1:3]) if chosen is None else chosen.batch)
    return replace(scoring_as(guard, folder, chosen, sample, size), images=images)


def scoring_as(
    guard: Guard | GraphGuard, folder: str | Path, engine: ChosenEngine | None, sample: NDArray[np.uint8], batch: int
) -> Scoring:
    """Judge as was settled: by this engine, made on these images, in batches of so many; the set is yet to come."""
    nothing = ArraySet(_none(), "none")
    if isinstance(guard, GraphGuard):
        digest = sha256(guard.path)
        return Scoring(
            guard.judge_set, nothing, VerdictTable(folder), digest, key_of(digest, str(batch)), batch, None, sample
        )
    if engine is not None and guard.split.runner is None:
        guard.split.runner = EngineRunner.adopting(engine, guard.split, _inputs(guard, sample))
    digest, identity = guard_digest(guard), guard_identity(guard, engine, batch)
    judge = partial(judge_set, guard)
    return Scoring(judge, nothing, VerdictTable(folder), digest, identity, batch, engine, sample, guard.recalls)


def _inputs(guard: Guard, sample: NDArray[np.uint8]) -> Tensor:
    """Make the network's input of images that were read for it."""
    if guard.preprocessing is None:
        raise InputError("Guard: has no preprocessing, so it takes tensors only; calibrate it with one")
    return as_input(guard.split.model, guard.preprocessing.normalize(sample))


def run_scoring(job: Scoring, listener: Listener | None = None) -> list[Part]:
    """Judge all that the table does not hold yet, in this process, and give its parts."""
    hear = listener or Listener()
    hear.phase("images", len(job.images))
    parts = []
    spans = list(job.spans())
    job.table.start(job.guard, ((number, key) for number, *_, key in spans))
    for number, start, stop, key in spans:
        part = job.table.find(number, key)
        if part is not None:
            hear.advance(stop - start)
        else:
            names = [job.images.item(index) for index in range(start, stop)]
            part = judge_span(job, job.images.portion(start, stop), names, number, key, hear)
        parts.append(part)
    job.table.finish(parts, job.about())
    return parts


def judge_span(
    job: Scoring, images: ImageSet, names: Sequence[str], number: int, key: str, listener: Listener | None = None
) -> Part:
    """Judge the images of one part of the table, and write it."""
    return job.table.put(number, key, names, list(job.judge(images, batch=job.batch, listener=listener)))


def guard_identity(guard: Guard, engine: ChosenEngine | None, batch: int) -> str:
    """Hash all that decides a verdict but the image: the guard, the versions, the engine and the batch."""
    said = json.dumps(describe(guard), sort_keys=True)
    return key_of(said, _learned(guard), "" if engine is None else engine.key(), str(batch))


def guard_digest(guard: Guard) -> str:
    """Hash the guard itself: what it has learned and its options, but no version of a library."""
    said = {key: value for key, value in describe(guard).items() if key != "versions"}
    return key_of(json.dumps(said, sort_keys=True), _learned(guard))


def _learned(guard: Guard) -> str:
    calibration = guard.calibration
    assert calibration is not None  # a guard that was loaded has one
    learned = dict(guard.detector.state()) | {"scores": calibration.scores, "sizes": calibration.sizes}
    return sha256_of(packed(learned))


def _sample(images: ImageSet, how: Preprocessing | None) -> NDArray[np.uint8]:
    """Read some images to make the engine on; none where none of them can be read, and then each is told by itself."""
    try:
        if how is None:
            return _none()
        count = FEW if how.size is not None else 1
        return read_sample(images, how, count)[1].pixels[:count]
    except DataError:
        return _none()


def _none() -> NDArray[np.uint8]:
    return np.zeros((0, 1, 1, 3), np.uint8)

"""Judges images on a cluster, into the very table that one process would write."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from idness.cluster.extracting import absolute, located_file
from idness.cluster.pool import Doer, Task, done_by_ray
from idness.cluster.session import Pool
from idness.core.errors import ModelError
from idness.core.progress import Listener
from idness.core.scripts import approved
from idness.data import ImageSet
from idness.guard.file import load_guard, read_manifest
from idness.guard.graph import SUFFIX, GraphGuard
from idness.guard.scoring import Scoring, judge_span, scoring_as
from idness.guard.table import Counts, Part
from idness.networks.engines import ChosenEngine


@dataclass(frozen=True)
class ScoreWork:
    """Says which guard an actor loads, how it judges, and where the table goes."""

    out: str
    guard: str
    spec: str | None
    weights: str | None
    recalls: tuple[float, ...]
    engine: ChosenEngine | None
    sample: NDArray[np.uint8]
    batch: int
    device: str
    threads: int
    identity: str

    def open(self) -> Doer:
        """Load the guard, and see that it is the driver's."""
        torch.set_num_threads(self.threads)
        if self.guard.endswith(SUFFIX):
            loaded: Any = GraphGuard(Path(self.guard))
        else:
            loaded = load_guard(self.guard, self.spec, self.weights).set_recall(*self.recalls).to(self.device)
        job = scoring_as(loaded, self.out, self.engine, self.sample, self.batch)
        if job.identity != self.identity:
            raise ModelError(f"{self.guard} is another guard here than where the work comes from")

        def do(task: Task) -> dict[str, Any]:
            found = job.table.find(task.number, task.key)
            return asdict(found or judge_span(job, task.images, task.names, task.number, task.key))

        return do


@dataclass(frozen=True)
class ScoreSpans:
    """Gives the spans of the set that is judged."""

    whole: ImageSet
    spans: list[tuple[int, int, int, str]]
    there: frozenset[int]

    def task(self, number: int) -> Task:
        """Give one span."""
        _, start, stop, key = self.spans[number]
        part = self.whole.portion(start, stop)
        names = [self.whole.item(index) for index in range(start, stop)]
        return Task(number, start, key, part, names=names, there=number in self.there)


def score_on_ray(
    job: Scoring, guard: Path, model: str | None, weights: str | None, pool: Pool, listener: Listener | None = None
) -> list[Part]:
    """Judge all that the table does not hold yet, on a cluster, and give its parts."""
    hear = listener or Listener()
    hear.phase("images", len(job.images))
    spans = list(job.spans())
    job.table.start(job.guard, ((number, key) for number, *_, key in spans))
    parts = {number: job.table.find(number, key) for number, _, _, key in spans}
    missing = [number for number, part in parts.items() if part is None]
    hear.advance(sum(stop - start for number, start, stop, _ in spans if parts[number] is not None))
    if missing:
        work = _work(job, guard, model, weights, pool)
        there = frozenset(n for n in missing if job.images.portion(*spans[n][1:3]).present())
        for number, said in done_by_ray(work, ScoreSpans(job.images, spans, there), missing, pool):
            parts[number] = Part(said["file"], said["sha256"], Counts(**said["counts"]))
            hear.advance(spans[number][2] - spans[number][1])
    found = [part for number in range(len(spans)) if (part := parts[number]) is not None]
    job.table.finish(found, job.about())
    return found


def _work(job: Scoring, guard: Path, model: str | None, weights: str | None, pool: Pool) -> ScoreWork:
    spec = model
    if model is None and guard.suffix != SUFFIX:
        known = read_manifest(guard).model
        # What the user trusts here is trusted on the workers too, which have no list of their own.
        spec = None if known.spec is None else approved(known.spec, code=known.code)
    return ScoreWork(
        out=str(job.table.folder.resolve()),
        guard=str(guard.resolve()),
        spec=None if spec is None else absolute(spec),
        weights=located_file(weights),
        recalls=job.recalls,
        engine=job.engine,
        sample=job.sample,
        batch=job.batch,
        device="cuda" if pool.gpus else "cpu",
        threads=torch.get_num_threads(),
        identity=job.identity,
    )

"""Fills a feature store on a cluster, with the very shards that one process would write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from idness.activations.extract import Span, finish, plan, shard_of
from idness.activations.store import FeatureStore
from idness.benchmark.extraction import Extraction, Filled, filled
from idness.cluster.pool import Doer, Task, done_by_ray
from idness.cluster.session import Pool
from idness.core.errors import ModelError
from idness.core.progress import Listener
from idness.core.scripts import Script
from idness.data import ImageSet
from idness.networks.engines import ChosenEngine, ChosenPrecision, EngineRunner
from idness.networks.modules import as_input
from idness.networks.open import ModelOptions, Network, open_network


@dataclass(frozen=True)
class ExtractWork:
    """Says which network an actor opens, how it runs it, and where the shards go."""

    out: str
    options: ModelOptions
    precision: ChosenPrecision
    size: tuple[int, int] | None
    engine: ChosenEngine | None
    sample: NDArray[np.uint8]
    batch: int
    workers: int
    threads: int
    identity: str

    def open(self) -> Doer:
        """Open the network, and see that it is the driver's."""
        torch.set_num_threads(self.threads)
        network = replace(open_network(self.options), precision=self.precision, size=self.size, engine=self.engine)
        if network.identity != self.identity:
            raise ModelError(f"{self.options.model} is another network here than where the work comes from")
        adopt(network, self.sample)
        store = FeatureStore(self.out)

        def do(task: Task) -> dict[str, Any]:
            found = store.find(task.key)
            if found is None:
                known = None if task.labels is None else torch.frombuffer(bytearray(task.labels), dtype=torch.long)
                shard = shard_of(network, task.images, known, task.start, self.batch, self.workers)
                found = store.put(task.key, shard)
            return {"sha256": found}

        return do


def adopt(network: Network, sample: NDArray[np.uint8]) -> None:
    """Let a network run by the engine that the driver chose, built on the driver's images."""
    if network.engine is not None:
        inputs = as_input(network.split.model, network.preprocessing.normalize(sample))
        network.split.runner = EngineRunner.adopting(network.engine, network.split, inputs)


@dataclass(frozen=True)
class SetSpans:
    """Gives the spans of several sets, numbered through."""

    sets: Sequence[tuple[ImageSet, Tensor | None, Sequence[Span]]]
    places: Sequence[tuple[int, int]]
    there: frozenset[int]

    def task(self, number: int) -> Task:
        """Give one span."""
        which, place = self.places[number]
        images, known, spans = self.sets[which]
        span = spans[place]
        labels = None if known is None else known[span.start : span.stop].numpy().tobytes()
        part = images.portion(span.start, span.stop)
        return Task(number, span.start, span.key, part, labels=labels, there=number in self.there)


def extract_on_ray(job: Extraction, pool: Pool, listener: Listener | None = None) -> list[Filled]:
    """Run the network over all that the store does not hold yet, on a cluster."""
    hear = listener or Listener()
    hear.phase("network", job.images)
    network, store = job.network, job.store
    sets = [(images, network.labels_of(images)) for _, images in job.sets]
    planned = [(images, known, list(plan(network, images, known, store))) for images, known in sets]
    places = [(which, place) for which, (_, _, spans) in enumerate(planned) for place in range(len(spans))]
    spans = [planned[which][2][place] for which, place in places]
    refs = {number: store.find(span.key) for number, span in enumerate(spans)}
    missing = [number for number, ref in refs.items() if ref is None]
    hear.advance(sum(span.stop - span.start for number, span in enumerate(spans) if refs[number] is not None))
    if missing:
        there = (n for n in missing if planned[places[n][0]][0].portion(spans[n].start, spans[n].stop).present())
        held = SetSpans(planned, places, frozenset(there))
        for number, said in done_by_ray(_work(job, pool), held, missing, pool):
            refs[number] = said["sha256"]
            hear.advance(spans[number].stop - spans[number].start)
    return [_finished(job, which, planned, places, refs, set(missing)) for which in range(len(planned))]


def _finished(
    job: Extraction,
    which: int,
    planned: Sequence[tuple[ImageSet, Tensor | None, Sequence[Span]]],
    places: Sequence[tuple[int, int]],
    refs: dict[int, str | None],
    missing: set[int],
) -> Filled:
    """Write the manifest of one set, and count."""
    name, images = job.sets[which]
    own = [number for number, (owner, _) in enumerate(places) if owner == which]
    spans = planned[which][2]
    names = {spans[places[number][1]].key: refs[number] or "" for number in own}
    key = finish(job.network, images, job.store, names)
    ran = sum(spans[places[number][1]].stop - spans[places[number][1]].start for number in own if number in missing)
    return filled(job.store, name, images, key, ran)


def _work(job: Extraction, pool: Pool) -> ExtractWork:
    network, settings = job.network, job.settings
    spec, weights = job.options.located()
    return ExtractWork(
        out=str(job.store.root.resolve()),
        options=ModelOptions(
            absolute(spec),
            located_file(weights),
            layer=network.split.layer,
            multi_label=network.split.multi_label,
            class_names=network.class_names or (),
            preprocessing=network.preprocessing,
            precision=network.precision.used,
            device="cuda" if pool.gpus else job.options.device,
        ),
        precision=network.precision,
        size=network.size,
        engine=network.engine,
        sample=job.sample,
        batch=settings.batch_size or network.batch,
        workers=settings.workers or torch.get_num_threads(),
        threads=torch.get_num_threads(),
        identity=network.identity,
    )


def located_file(weights: str | Path | None) -> str | None:
    """Name a file of weights with its whole path; `none`, which is no file, as it is."""
    return None if weights is None else "none" if str(weights) == "none" else str(Path(weights).resolve())


def absolute(spec: str) -> str:
    """Name a network that is made by a Python file with the whole path of that file; others as they are."""
    script = Script.named(spec)
    return spec if script is None else script.key

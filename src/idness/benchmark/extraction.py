"""Runs a network over sets ahead of time, into a store that a benchmark then takes for its own cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idness.activations.extract import extract
from idness.activations.store import FeatureStore
from idness.benchmark.prepare import prepare
from idness.benchmark.protocol import Benchmark, names
from idness.benchmark.settings import Settings
from idness.core.errors import DataError, OptionError
from idness.core.progress import Listener
from idness.core.wording import listed
from idness.data import ImageSet
from idness.data.batches import read_sample
from idness.data.open import open_argument
from idness.networks.engines import FEW
from idness.networks.modules import as_input
from idness.networks.open import ModelOptions, Network, open_network


@dataclass(frozen=True)
class Extraction:
    """Holds a network that is ready to run, the sets that it will run over, and where what it makes of them goes.

    `sample` has the images on which the engine was made, as they are read: another process makes the same engine of them.
    """

    network: Network
    options: ModelOptions
    sets: Sequence[tuple[str, ImageSet]]
    store: FeatureStore
    settings: Settings
    sample: NDArray[np.uint8]

    @property
    def images(self) -> int:
        """How many images there are in all sets."""
        return sum(len(images) for _, images in self.sets)


@dataclass(frozen=True)
class Filled:
    """Says how many images of a set were run, taken from the store, and left out, and why the first of these was."""

    name: str
    images: int
    ran: int
    cached: int
    unread: int
    first: str = ""

    def describe(self) -> str:
        """Say it in one line."""
        left = f", {self.unread:,} left out; the first, {self.first}" if self.unread else ""
        return f"{self.name}: {self.images:,} images, {self.ran:,} run, {self.cached:,} taken from the store{left}"

    def to_dict(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        return {key: getattr(self, key) for key in ("name", "images", "ran", "cached", "unread", "first")}


def prepare_extraction(
    model: str | ModelOptions, sets: Sequence[str], settings: Settings, *, listener: Listener | None = None
) -> Extraction:
    """Open the sets and the network, and build the engine that fills the store.

    Args:
        model: the network, as `load_model` takes it, or its options, which replace those of `settings`. A benchmark has its own
            preprocessing and class names.
        sets: a benchmark's name or TOML file, for all its sets; or sets, as `open_set` takes them.
        settings: how to run it; its `cache` is the store that is filled.
        listener: progress callback.
    """
    options = settings.model_options(model)
    hear, store = listener or Listener(), FeatureStore(settings.cache)
    if len(sets) == 1 and (sets[0] in names() or sets[0].endswith(".toml")):
        if options.preprocessing is not None or options.class_names:
            raise OptionError("preprocessing= and class_names= are the benchmark's own; write them into its file")
        bench = Benchmark.load(sets[0])
        opened = bench.open(settings.data, partial=settings.partial)
        network = prepare(bench, opened, options, settings, hear).network
        assert network is not None  # a model was named
        pictures = [(entry.name, entry.data) for entry in opened if isinstance(entry.data, ImageSet)]
    else:
        pictures = [(images.source, images) for images in (_open(value, options.class_names) for value in sets)]
        network = _opened(options, pictures, settings, hear)
    if not pictures:
        raise DataError(f"{listed(list(sets))}: holds activations, and no images to run the network over")
    sample = read_sample(pictures[0][1], network.preprocessing, FEW, workers=settings.workers)[1].pixels[:FEW]
    if network.split.runner is not None:
        inputs = as_input(network.split.model, network.preprocessing.normalize(sample))
        network = replace(network, engine=network.split.runner.prepare(network.split, inputs))
    return Extraction(network, options, pictures, store, settings, sample)


def run_extraction(job: Extraction, listener: Listener | None = None) -> list[Filled]:
    """Run the network over all that the store does not hold yet, in this process."""
    hear = listener or Listener()
    hear.phase("network", job.images)
    found = []
    for name, images in job.sets:
        settings = job.settings
        key, ran = extract(
            job.network, images, job.store, batch_size=settings.batch_size, workers=settings.workers, listener=hear
        )
        found.append(filled(job.store, name, images, key, ran))
    return found


def filled(store: FeatureStore, name: str, images: ImageSet, key: str, ran: int) -> Filled:
    """Count what came of a set that is in the store as a whole."""
    skipped = store.skipped(key)
    first = f"{images.item(skipped[0][0])}: {skipped[0][1]}" if skipped else ""
    return Filled(name, len(images), ran, len(images) - ran, len(skipped), first)


def _open(value: str, classes: Sequence[str]) -> ImageSet:
    """Open a set; folders of the network's classes are read in their order, as a benchmark reads its ID sets."""
    found = open_argument("sets", value)
    if isinstance(found, ImageSet) and found.classes and set(found.classes) <= set(classes):
        found = open_argument("sets", value, classes)
    if not isinstance(found, ImageSet):
        raise DataError(f"{value}: must be a set of images, got activations, which need no network")
    return found


def _opened(
    options: ModelOptions, sets: Sequence[tuple[str, ImageSet]], settings: Settings, listener: Listener
) -> Network:
    expected = sum(len(found) for _, found in sets)
    network = open_network(options, images=sets[0][1], expected=expected, workers=settings.workers)
    listener.note(f"preprocessing: {network.preprocessing.describe()}")
    if network.engine is not None:
        listener.note(f"engine: {network.engine.describe()}")
    return network

"""Extraction of the activations of a benchmark, or of other sets for `idness extract`, into a feature store."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from idness.activations.extract import extract
from idness.activations.store import FeatureStore
from idness.benchmark.protocol import Benchmark, OpenSet, Settings, names
from idness.benchmark.results import ModelInfo
from idness.core.errors import DataError, ModelError, OptionError
from idness.core.progress import Progress
from idness.core.text import abridged, listed, without_folder
from idness.core.types import Head, InputEditor
from idness.data import ImageSet, Preprocessing, embedded, read_batches
from idness.data.activations import ActivationsFile, ActivationsSet, read_head
from idness.data.batches import read_sample
from idness.data.open import open_argument
from idness.networks.engines import FEW
from idness.networks.modules import as_input
from idness.networks.open import ModelOptions, Network, open_network, places_of
from idness.selection.search import Row

TRAIN_SAMPLE = 50_000
"""Maximum number of training images that methods are fitted on; larger sets are sampled at random."""


def benchmark_network(
    bench: Benchmark,
    sets: Sequence[OpenSet],
    model: str | nn.Module | ModelOptions | None,
    settings: Settings,
    progress: Progress,
) -> tuple[Head, Network | None, ModelInfo]:
    """Open the network of a benchmark, check that it matches the sets, and return the head, the network and its description.

    The network is `None` if all sets are activations and no model is given.
    """
    images = {entry.name: entry.data for entry in sets if isinstance(entry.data, ImageSet)}
    if model is None and not images:
        if bench.head is None:
            raise DataError(
                f"benchmark {bench.name}: has activations only; set head to a file with weight and bias, or pass model="
            )
        path = bench.root(settings.data) / bench.head
        head, digest = read_head(path)
        _check_classes(bench, sets, head)
        about: dict[str, Any] = {"spec": "activations", "weights": path.name, "weights_sha256": digest, "layer": ""}
        return head, None, ModelInfo(**about, features=head.width, classes=head.classes, parameters=0)
    if model is None:
        if bench.name not in embedded.NETWORKS:
            raise ModelError(f"benchmark {bench.name}: needs model= (torchvision:NAME, timm:NAME or file.py:function)")
        model = f"{bench.name}:{embedded.NETWORKS[bench.name][0]}"
    how = None if bench.preprocessing is None else Preprocessing.from_dict(bench.preprocessing)
    options = replace(settings.model_options(model), preprocessing=how, class_names=bench.class_names)
    first = next((images[name] for name in ("id_test", "id_train", "id_val", *images) if name in images), None)
    network = _opened(options, first, sum(map(len, images.values())), settings, progress)
    head = network.split.head
    _check_classes(bench, sets, head, network)
    for name, data in images.items():  # read one image of each set before anything slow starts
        [batch] = read_batches(data, network.preprocessing, [(0, 1)])
        network.check_size(name, batch.pixels)
    weights = options.located()[1]
    info = ModelInfo(
        spec=without_folder(network.name),
        weights=None if weights is None else Path(weights).name,
        weights_sha256=network.weights_sha256,
        layer=network.split.layer,
        features=head.width,
        classes=head.classes,
        parameters=sum(parameter.numel() for parameter in network.split.model.parameters()),
    )
    return head.to("cpu"), network, info


def _opened(
    options: ModelOptions, images: ImageSet | None, expected: int, settings: Settings, progress: Progress
) -> Network:
    network = open_network(options, images=images, expected=expected, workers=settings.workers)
    if images is not None:
        progress.note(f"preprocessing: {network.preprocessing.describe()}")
    if network.precision.asked == "auto":
        progress.note(f"precision: {network.precision.used} ({network.precision.why})")
    if network.engine is not None:
        progress.note(f"engine: {network.engine.describe()}")
    return network


def _check_classes(bench: Benchmark, sets: Sequence[OpenSet], head: Head, network: Network | None = None) -> None:
    """Check the classes of benchmark and sets against those of the network, and the sizes of activations against its head."""
    classes = head.classes
    declared = len(bench.class_names) if bench.class_names else bench.classes
    if declared is not None and declared != classes:
        raise DataError(
            f"benchmark {bench.name}: has {declared} classes, the network has {classes}; use another network"
        )
    for entry in sets:
        name, data, is_id = entry.name, entry.data, entry.role.startswith("id_")
        labels: tuple[int, int] | None = None
        if isinstance(data, ActivationsFile):
            logits = classes if data.classes is None else data.classes
            if (data.features, logits) != (head.width, classes):
                sizes = f"{data.features} features and {logits} logits, the head has {head.width} and {classes}"
                raise DataError(f"{name}: has {sizes}; use activations of the same network")
            data.head = Head(head.weight.cpu(), head.offset.cpu())  # computes the logits if the file has none
            labels = data.label_range() if is_id else None
        elif is_id and data.labels is not None and network is not None:
            labels = int(data.labels.min()), int(data.labels.max())
            if labels[0] >= 0 and network.labels_of(data) is None:
                raise DataError(f"{name}: {_unknown_classes(data, network, classes, labels[1])}")
        if labels is not None and (labels[0] < 0 or labels[1] >= classes):
            raise DataError(f"{name}: labels must be in [0, {classes - 1}], got {labels[0]} to {labels[1]}")


def _unknown_classes(images: ImageSet, network: Network, classes: int, highest: int) -> str:
    """Return a message about the classes of a set that the network does not have."""
    other = [name for name in images.classes if places_of([name], network.class_names or (), 0) is None]
    which = f"; not among its class names: {abridged(other)}" if network.class_names else ""
    return (
        f"has {max(len(images.classes), highest + 1)} classes, the network has {classes}{which}; set classes in the benchmark file to"
        f" all {classes} names in the order of the outputs, remove other folders, or use another network"
    )


@dataclass
class Pass:
    """A set of methods, the activations that they need, and, in memory, the activations that they are fitted on."""

    rows: Mapping[str, Row]
    sets: Sequence[ActivationsSet]

    def __post_init__(self) -> None:
        parts = {role: [part for part in self.sets if part.role == role] for role in ("id_train", "id_val", "ood_val")}
        self.train = parts["id_train"][0].load(TRAIN_SAMPLE) if parts["id_train"] else None
        self.val = parts["id_val"][0].load() if parts["id_val"] else None
        self.ood_val = {part.name: part.load() for part in parts["ood_val"]}


def run_passes(
    network: Network | None, sets: Sequence[OpenSet], wanted: Mapping[str, Row], settings: Settings, progress: Progress
) -> tuple[list[Pass], dict[str, float]]:
    """Run the network once over all images that are not in the store yet, and again for methods that edit images.

    Return the passes, beginning with that of the unedited images, the seconds, and the numbers of images run and found in the store.
    Methods that edit images have no pass if some sets are activations.
    """
    start, store, counts = time.perf_counter(), FeatureStore(settings.cache), {"images": 0.0, "cached": 0.0}
    how: dict[str, Any] = {"batch_size": settings.batch_size, "workers": settings.workers, "progress": progress}

    def activations(entry: OpenSet, editor: InputEditor | None = None) -> ActivationsSet:
        data, count = entry.data, len(entry.data)
        if not isinstance(data, ImageSet):
            return ActivationsSet(entry.name, count, data.shards, role=entry.role, sha256=data.fingerprint())
        assert network is not None
        key, ran = extract(network, data, store, edit_with=editor, **how)
        counts["images"] += ran
        counts["cached"] += count - ran
        return ActivationsSet(entry.name, count, partial(store.shards, key), data, entry.role)

    images = [len(entry.data) for entry in sets if isinstance(entry.data, ImageSet)]
    if images:
        progress.phase("network", sum(images))
    plain = {entry.name: activations(entry) for entry in sets}
    if "id_train" in plain and plain["id_train"].count > TRAIN_SAMPLE:
        sample = f"a random sample of {TRAIN_SAMPLE:,} of {plain['id_train'].count:,} images (seed 0)"
        progress.note(f"id_train: methods are fitted on {sample}")
    one_pass = {name: row for name, row in wanted.items() if row.detector.input_edit is None}
    passes = [Pass(one_pass, list(plain.values()))]
    edits: dict[str, tuple[InputEditor, dict[str, Row]]] = {}
    for name, row in wanted.items():
        if (editor := row.detector.input_edit) is not None and len(images) == len(sets):
            edits.setdefault(editor.edit_key(), (editor, {}))[1][name] = row
    for editor, rows in edits.values():
        validated = any(entry.role == "id_val" for entry in sets)
        train = any(row.detector.needs_train and not (row.detector.needs_val and validated) for row in rows.values())
        seen = [entry for entry in sets if train or entry.role != "id_train"]
        progress.phase(f"network, second pass for {', '.join(rows)}", sum(len(entry.data) for entry in seen))
        passes.append(Pass(rows, [plain[entry.name].with_edited(activations(entry, editor)) for entry in seen]))
    return passes, {"extract": time.perf_counter() - start, **counts}


@dataclass(frozen=True)
class Extraction:
    """A network, the sets to run it over, and the store for its activations.

    `sample` contains the images that the engine was built with, as they were read, so that another process can build the same engine.
    """

    network: Network
    options: ModelOptions
    sets: Sequence[tuple[str, ImageSet]]
    store: FeatureStore
    settings: Settings
    sample: NDArray[np.uint8]

    @property
    def images(self) -> int:
        """The number of images of all sets."""
        return sum(len(images) for _, images in self.sets)


@dataclass(frozen=True)
class Filled:
    """The numbers of images of a set that were run, found in the store, or unreadable, and the first unreadable one."""

    name: str
    images: int
    ran: int
    cached: int
    unread: int
    first: str = ""

    def __str__(self) -> str:
        left = f", {self.unread:,} skipped; first: {self.first}" if self.unread else ""
        return f"{self.name}: {self.images:,} images, {self.ran:,} run, {self.cached:,} found in the store{left}"


def prepare_extraction(
    model: str | ModelOptions, sets: Sequence[str], settings: Settings, *, progress: Progress | None = None
) -> Extraction:
    """Open the sets, or all sets of a benchmark given by name or TOML file, and the network, and build the engine.

    A benchmark defines preprocessing and class names itself; `settings.cache` is the store.
    """
    options, progress = settings.model_options(model), progress or Progress()
    network: Network | None = None
    found: list[tuple[str, ImageSet | ActivationsFile]]
    if len(sets) == 1 and (sets[0] in names() or sets[0].endswith(".toml")):
        if options.preprocessing is not None or options.class_names:
            raise OptionError("preprocessing= and class_names= are part of the benchmark; set them in its file")
        bench = Benchmark.load(sets[0])
        opened = bench.open(settings.data, partial=settings.partial)
        _, network, _ = benchmark_network(bench, opened, options, settings, progress)
        found = [(entry.name, entry.data) for entry in opened]
    else:
        found = [(data.source, data) for data in (_open_argument(value, options.class_names) for value in sets)]
    images = [(name, data) for name, data in found if isinstance(data, ImageSet)]
    if not images or (network is None and len(images) < len(found)):
        raise DataError(f"{listed(list(sets))}: contains activations; pass sets of images")
    if network is None:
        network = _opened(options, images[0][1], sum(len(data) for _, data in images), settings, progress)
    sample = read_sample(images[0][1], network.preprocessing, FEW, workers=settings.workers)[1].pixels[:FEW]
    if network.split.runner is not None:
        inputs = as_input(network.split.model, network.preprocessing.normalize(sample))
        network = replace(network, engine=network.split.runner.prepare(network.split, inputs))
    return Extraction(network, options, images, FeatureStore(settings.cache), settings, sample)


def run_extraction(job: Extraction, progress: Progress | None = None) -> list[Filled]:
    """Run the network over all images that are not in the store yet, in this process."""
    progress, found = progress or Progress(), []
    progress.phase("network", job.images)
    how: dict[str, Any] = {"batch_size": job.settings.batch_size, "workers": job.settings.workers, "progress": progress}
    for name, images in job.sets:
        key, ran = extract(job.network, images, job.store, **how)
        found.append(filled(job.store, name, images, key, ran))
    return found


def filled(store: FeatureStore, name: str, images: ImageSet, key: str, ran: int) -> Filled:
    """Return the counts of a set whose activations in the store are complete."""
    skipped = store.skipped(key)
    first = f"{images.item(skipped[0][0])}: {skipped[0][1]}" if skipped else ""
    return Filled(name, len(images), ran, len(images) - ran, len(skipped), first)


def _open_argument(value: str, classes: Sequence[str]) -> ImageSet | ActivationsFile:
    """Open a set; class folders are read in the order of the network's classes, as in a benchmark."""
    found = open_argument("sets", value)
    ordered = isinstance(found, ImageSet) and found.classes and set(found.classes) <= set(classes)
    return open_argument("sets", value, classes) if ordered else found

"""Makes a small file of a training set, which guards and benchmarks take in its place: `idness fit`."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from idness.activations.extract import extract
from idness.activations.forward import collect
from idness.activations.source import Source, given, read_head, stored
from idness.activations.store import FeatureStore
from idness.core.documents import packed
from idness.core.errors import DataError, InputError, OptionError
from idness.core.files import atomic_write
from idness.core.progress import Listener
from idness.core.types import Activations, Head
from idness.core.wording import without_folder
from idness.data import ActivationsSet, ImageSet, Preprocessing
from idness.data.activations import FITTED, Fitted, body_sha256, head_sha256
from idness.data.sources import open_argument
from idness.detectors.detector import Detector
from idness.detectors.registry import parse, rows
from idness.detectors.statistics import Statistic
from idness.detectors.summary import KEEP, Summary, summarise
from idness.networks.engines.driver import Driver
from idness.networks.opening import Network, open_network

SHARDS = 4
"""How many shards of the store are one part: 4,096 images, which take 67 MB in float64 where a network has 2,048 features."""
HEADS = (".npz", ".safetensors")


@dataclass
class Made:
    """Holds the summary of one set, and what it is of."""

    summary: Summary
    source: str
    skipped: int = 0


@dataclass
class _Of:
    """Keeps the network that a summary is of; where only its head is known, that alone."""

    head: Head
    name: str
    weights_sha256: str = ""
    network: Network | None = field(default=None, repr=False)


def fit_file(
    model: str,
    data: Sequence[str | Path],
    out: str | os.PathLike[str],
    *,
    weights: str | Path | None = None,
    methods: Sequence[str] = (),
    keep: int = KEEP,
    preprocessing: Preprocessing | None = None,
    layer: str | None = None,
    class_names: Sequence[str] = (),
    multi_label: bool | None = None,
    cache: str | Path | None = None,
    engine: str = "auto",
    listener: Listener | None = None,
) -> Fitted:
    """Gather what methods learn from training images in one pass, and write it to a file.

    Images are learned part by part, in the memory of a few parts. The network's activations are kept in the store, so that a run that
    was stopped goes on where it was.

    Args:
        model: the network, as `load_model` takes it, or a file with the head's weight and bias where all data are activations.
        data: the training images, one set or several: folders, other sets, activations, or files that `fit_file` made of others.
        out: the file to write; its name ends in .safetensors.
        weights: the network's weights.
        methods: the methods to gather statistics for, as `rmds`; all if none are given.
        keep: how many images the sample has, an equal number of each class.
        preprocessing: how pictures become input, where the network does not say.
        layer: the final linear layer's name, where it should not be searched.
        class_names: the names of the classes in the order of its outputs, where the network does not say.
        multi_label: whether an image may get several labels, or none, where the network does not show it.
        cache: the folder of the store; the usual one if not given.
        engine: what runs the network: eager, compiled, onnxruntime, openvino, or auto, which measures.
        listener: hears of progress.
    """
    path, hear = Path(out), listener or Listener()
    if path.suffix != ".safetensors":
        raise OptionError(f"out= must end in .safetensors, got {path.name!r}")
    if keep < 1:
        raise OptionError(f"keep= must be at least 1, got {keep}")
    if not data:
        raise InputError("data= must name at least one set of training images, got none")
    wanted = statistics_for(methods)
    sets = [open_argument("data", place) for place in data]
    pictures = [entry for entry in sets if isinstance(entry, ImageSet)]
    if Path(model).suffix in HEADS and Path(model).is_file() and not pictures:
        head, digest = read_head(Path(model))
        of = _Of(head, Path(model).name, digest)
    else:
        network = open_network(
            model,
            weights,
            layer=layer,
            multi_label=multi_label,
            preprocessing=preprocessing,
            images=pictures[0] if pictures else None,
            class_names=class_names,
            driver=Driver(engine, sum(len(entry) for entry in pictures), FeatureStore(cache).engines),
        )
        of = _Of(network.split.head.to("cpu"), without_folder(network.name), network.weights_sha256, network)
        if network.engine is not None:
            hear.note(f"engine: {network.engine.describe()}")
    store = FeatureStore(cache)
    made = [_made(of, entry, wanted, keep, store, hear) for entry in sets]
    whole = reduce(Summary.merged, (part.summary for part in made))
    return _write(path, whole, of, [part.source for part in made], sum(part.skipped for part in made))


def statistics_for(methods: Sequence[str] = ()) -> list[Statistic[Any]]:
    """List the statistics that methods learn; of all methods if none are named."""
    detectors = [parse(text) for text in methods] or list(rows().values())
    for detector in detectors:
        if detector.input_edit is not None:
            raise OptionError(
                f"methods= must look at an image once, got {detector.name}, which changes images and looks again"
            )
    return statistics_of(detectors)


def statistics_of(detectors: Sequence[Detector]) -> list[Statistic[Any]]:
    """List the statistics that detectors learn, and those inside them, each once."""
    found = [statistic for detector in detectors for statistic in _statistics(detector)]
    return list({statistic.name: statistic for statistic in found}.values())


def _statistics(detector: Detector) -> Iterator[Statistic[Any]]:
    yield from detector.statistics
    for _, part in detector.inner():
        yield from _statistics(part)


def _made(
    of: _Of,
    data: ImageSet | ActivationsSet,
    wanted: Sequence[Statistic[Any]],
    keep: int,
    store: FeatureStore,
    hear: Listener,
) -> Made:
    """Summarise one set, or take its summary where it is one."""
    if isinstance(data, ActivationsSet):
        data.head = of.head
        data.check_head(of.head)
        if data.about is not None:
            digests = data.digests()
            assert digests is not None
            if data.about.keep != keep:
                raise OptionError(f"keep= must be {data.about.keep}, as in {data.path.name}, got {keep}")
            sample = collect(None, data).acts
            summary = Summary.of_sample(sample, torch.from_numpy(digests), wanted, keep=keep)
            return Made(summary, ", ".join(data.about.source), data.about.skipped)
        source = given(data.source, "id_train", data)
    else:
        assert of.network is not None
        if len(data) == 0:
            raise DataError(f"{data.source}: holds no images; supported names end in .jpg, .png, .webp, ...")
        hear.phase("network", len(data))
        done = extract(of.network, data, store, listener=hear)
        source = stored(data.source, "id_train", len(data), store, done.key)
    hear.phase("statistics", source.count)
    return summary_of(source, of.head, wanted, keep=keep, listener=hear)


def summary_of(
    source: Source,
    head: Head,
    statistics: Sequence[Statistic[Any]],
    *,
    keep: int = KEEP,
    listener: Listener | None = None,
) -> Made:
    """Summarise a set of activations in the memory of one part; the listener hears of every image."""
    skipped: list[str] = []
    summary = summarise(_parts(source, head, skipped, listener or Listener()), statistics, keep=keep)
    if summary is None:
        raise DataError(
            f"{source.name}: none of its images can be used; the first: {skipped[0] if skipped else 'it is empty'}"
        )
    return Made(summary, source.name, len(skipped))


def _parts(source: Source, head: Head, skipped: list[str], hear: Listener) -> Iterator[tuple[Activations, Tensor]]:
    """Give the images of a set in parts of several shards, always the same ones."""
    acts: list[Activations] = []
    digests: list[Tensor] = []
    for number, shard in enumerate(source.shards(), start=1):
        skipped += [reason for _, reason in shard.skipped]
        labels = shard.acts.labels
        if labels is not None and len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < head.classes:
            raise DataError(
                f"{source.name}: labels must be in [0, {head.classes - 1}], got {int(labels.min())} to {int(labels.max())}"
            )
        if len(shard.acts):
            acts.append(shard.acts)
            digests.append(shard.digests)
        if number % SHARDS == 0 and acts:
            part = Activations.concat(acts), torch.cat(digests)
            acts, digests = [], []
            yield part
            del part  # before the next one is read
        hear.advance(len(shard.acts) + len(shard.skipped))
    if acts:
        yield Activations.concat(acts), torch.cat(digests)


def _write(path: Path, summary: Summary, of: _Of, sources: list[str], skipped: int) -> Fitted:
    tensors = {"features": summary.sample.features, "digests": summary.digests, **summary.tensors()}
    if summary.sample.labels is not None:
        tensors["labels"] = summary.sample.labels
    about = Fitted(
        images=summary.count,
        keep=summary.keep,
        classes=of.head.classes,
        head_sha256=head_sha256(of.head),
        weights_sha256=of.weights_sha256,
        network=of.name,
        source=sources,
        skipped=skipped,
        versions={name: importlib.metadata.version(name) for name in ("idness", "torch")},
        sha256=body_sha256(tensors),
    )
    atomic_write(path, packed(tensors, {"fitted": FITTED.text(asdict(about))}))
    return about

"""Loads the network of a benchmark and checks it against the sets, before anything long begins."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from idness.activations.extract import Network
from idness.activations.source import read_head
from idness.benchmark.protocol import Benchmark, OpenSet
from idness.benchmark.provenance import without_folder
from idness.benchmark.results import ModelInfo
from idness.benchmark.settings import Settings
from idness.core.errors import DataError, IdnessWarning, ModelError
from idness.core.progress import Listener
from idness.core.types import Head
from idness.data import ImageSet, Preprocessing, embedded, preprocessing_for, read_batches
from idness.networks.precision import Choice, choose_precision
from idness.networks.split import SplitModel, load_model

EXAMPLE = 64
"""How many images serve to find the head, to measure the precision and to judge the normalisation."""


@dataclass(frozen=True)
class Prepared:
    """Holds what is known of the network; there is none where activations were given."""

    head: Head
    network: Network | None
    info: ModelInfo
    precision: Choice


def prepare(
    bench: Benchmark, sets: Sequence[OpenSet], model: str | nn.Module | None, settings: Settings, listener: Listener
) -> Prepared:
    """Load the network, find its preprocessing and precision, and check that it fits the sets."""
    pictures = {entry.name: entry.data for entry in sets if isinstance(entry.data, ImageSet)}
    if model is None and not pictures:
        return _given_head(bench, sets, settings)
    if model is None:
        if bench.name != embedded.NAME:
            raise ModelError(f"benchmark {bench.name}: needs --model (torchvision:NAME, timm:NAME or file.py:function)")
        model = embedded.MODEL
    spec = model if isinstance(model, str) else type(model).__name__
    loaded = model if isinstance(model, nn.Module) else _laid_out(load_model(model, settings.weights))
    loaded = loaded.to(_device(settings.device))
    preprocessing = _preprocessing(bench, loaded, spec, settings)
    listener.note(f"preprocessing: {preprocessing.describe()}")
    example = _example(pictures, preprocessing, settings.workers)
    split = SplitModel(loaded, settings.layer, example=None if example is None else example[:2])
    head = split.head
    check_classes(bench, sets, head)
    choice = (
        Choice("fp32", "fp32", "no images to run")
        if example is None
        else choose_precision(settings.precision, split, example)
    )
    if choice.asked == "auto":
        listener.note(f"precision: {choice.used} ({choice.why})")
    network = Network.of(split, preprocessing, choice.used, spec)
    info = ModelInfo(
        spec=without_folder(spec),
        weights=None if settings.weights is None else Path(settings.weights).name,
        weights_sha256=network.weights_sha256,
        layer=split.layer,
        features=head.width,
        classes=head.classes,
        parameters=sum(parameter.numel() for parameter in split.model.parameters()),
    )
    return Prepared(Head(head.weight.cpu(), head.offset.cpu()), network, info, choice)


def check_classes(bench: Benchmark, sets: Sequence[OpenSet], head: Head) -> None:
    """Compare the numbers of classes of benchmark, sets and network."""
    declared = len(bench.class_names) if bench.class_names else bench.classes
    if declared is not None and declared != head.classes:
        raise DataError(
            f"benchmark {bench.name}: has {declared} classes, the network gives {head.classes}; is it of other classes?"
        )
    for entry in sets:
        if not isinstance(entry.data, ImageSet):
            if (entry.data.features, entry.data.classes) != (head.width, head.classes):
                got = f"{entry.data.features} features and {entry.data.classes} logits"
                raise DataError(
                    f"{entry.name}: has {got} per image, the head {head.width} and {head.classes}; is it of another network?"
                )
        elif entry.known and entry.data.labels is not None:
            named, highest = len(entry.data.classes), int(entry.data.labels.max())
            if (named and named != head.classes) or highest >= head.classes:
                raise DataError(
                    f"{entry.name}: has {max(named, highest + 1)} classes, the network gives {head.classes}; is it of other classes?"
                )


def _given_head(bench: Benchmark, sets: Sequence[OpenSet], settings: Settings) -> Prepared:
    if bench.head is None:
        raise DataError(
            f'benchmark {bench.name}: all sets are activations, so it needs head = "file.safetensors" with weight and bias, or --model'
        )
    path = bench.root(settings.data) / bench.head
    head, digest = read_head(path)
    check_classes(bench, sets, head)
    info = ModelInfo(
        spec="activations",
        weights=path.name,
        weights_sha256=digest,
        layer="",
        features=head.width,
        classes=head.classes,
        parameters=0,
    )
    return Prepared(head, None, info, Choice("fp32", "fp32", "activations were given"))


def _laid_out(model: nn.Module) -> nn.Module:
    """Lay convolution weights out as images are: a third faster on a CPU, and the same numbers."""
    return model.to(memory_format=torch.channels_last)


def _preprocessing(bench: Benchmark, model: nn.Module, spec: str, settings: Settings) -> Preprocessing:
    """Take what the benchmark says, else what the network says, else nothing."""
    if bench.preprocessing is not None:
        return Preprocessing.from_dict(bench.preprocessing)
    weights = None if settings.weights is None else str(settings.weights)
    return preprocessing_for(model, spec, weights) or Preprocessing()


def _example(pictures: Mapping[str, ImageSet], preprocessing: Preprocessing, workers: int | None) -> Tensor | None:
    """Read some ID images, and warn if the normalisation does not suit them."""
    if not pictures:
        return None
    name = next((name for name in ("id_test", "id_train", "id_val") if name in pictures), next(iter(pictures)))
    images = pictures[name]
    # Sets that are read in order are read from the beginning; of others, images from everywhere tell more.
    step = max(1, len(images) // EXAMPLE) if images.parallel else 1
    spans = [(place, place + 1) for place in range(0, len(images), step)][:EXAMPLE]
    batches = list(read_batches(images, preprocessing, spans, workers=workers))
    good = [batch.pixels for batch in batches if len(batch.pixels)]
    if not good:
        raise DataError(f"{name}: none of its images can be read; the first: {batches[0].skipped[0][1]}")
    sizes = sorted({pixels.shape[1:3] for pixels in good})
    if len(sizes) > 1:
        found = " and ".join(f"{height} x {width}" for height, width in sizes[:2])
        raise DataError(
            f"{name}: images must have one size after preprocessing, got {found}; set resize and crop in [preprocessing]"
        )
    sample = torch.cat([torch.from_numpy(pixels) for pixels in good])
    suspicion = preprocessing.suspicion(sample)
    if suspicion:
        warnings.warn(suspicion, IdnessWarning, stacklevel=2)
    return preprocessing.normalize(sample)


def _device(wanted: str) -> torch.device:
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.device(wanted)
    except RuntimeError as error:
        raise ModelError(f"device must be auto, cpu, cuda or such, got {wanted!r}") from error

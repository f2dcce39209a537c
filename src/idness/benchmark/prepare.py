"""Opens the network of a benchmark and checks it against the sets, before anything long begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from idness.benchmark.parts import ModelInfo
from idness.benchmark.protocol import Benchmark, OpenSet
from idness.benchmark.settings import Settings
from idness.core.errors import DataError, ModelError
from idness.core.progress import Listener
from idness.core.types import Head
from idness.core.wording import abridged, without_folder
from idness.data import ActivationsFile, ImageSet, Preprocessing, embedded, read_batches
from idness.data.activations import read_head
from idness.networks.class_names import places_of
from idness.networks.engines import ChosenPrecision
from idness.networks.open import ModelOptions, Network, open_network


@dataclass(frozen=True)
class Prepared:
    """Keeps a network that is ready to run, and what is known of it; there is none where activations were given."""

    head: Head
    network: Network | None
    info: ModelInfo
    precision: ChosenPrecision


def prepare(
    bench: Benchmark,
    sets: Sequence[OpenSet],
    model: str | nn.Module | ModelOptions | None,
    settings: Settings,
    listener: Listener,
) -> Prepared:
    """Open the network, and check that it fits the sets."""
    pictures = {entry.role: entry.data for entry in reversed(sets) if isinstance(entry.data, ImageSet)}
    if model is None and not pictures:
        return _given_head(bench, sets, settings)
    if model is None:
        if bench.name != embedded.NAME:
            raise ModelError(f"benchmark {bench.name}: needs model= (torchvision:NAME, timm:NAME or file.py:function)")
        model = embedded.MODEL
    roles = [*("id_test", "id_train", "id_val"), *pictures]
    options = replace(
        settings.model_options(model),
        preprocessing=None if bench.preprocessing is None else Preprocessing.from_dict(bench.preprocessing),
        class_names=bench.class_names,
    )
    network = open_network(
        options,
        images=next((pictures[role] for role in roles if role in pictures), None),
        expected=sum(len(data) for data in pictures_of(sets)),
        workers=settings.workers,
    )
    if pictures:
        listener.note(f"preprocessing: {network.preprocessing.describe()}")
    head, chosen = network.split.head, network.precision
    check_classes(bench, sets, head, network)
    for entry in sets:
        if isinstance(entry.data, ImageSet):
            # One image of each, before anything long begins; one that cannot be read is told with the others.
            [first] = read_batches(entry.data, network.preprocessing, [(0, 1)])
            network.check_size(entry.name, first.pixels)
    if chosen.asked == "auto":
        listener.note(f"precision: {chosen.used} ({chosen.why})")
    if network.engine is not None:
        listener.note(f"engine: {network.engine.describe()}")
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
    return Prepared(head.to("cpu"), network, info, chosen)


def pictures_of(sets: Sequence[OpenSet]) -> list[ImageSet]:
    """Give the sets that are images."""
    return [entry.data for entry in sets if isinstance(entry.data, ImageSet)]


def check_classes(bench: Benchmark, sets: Sequence[OpenSet], head: Head, network: Network | None = None) -> None:
    """Compare the numbers of classes of benchmark, sets and network."""
    declared = len(bench.class_names) if bench.class_names else bench.classes
    if declared is not None and declared != head.classes:
        raise DataError(
            f"benchmark {bench.name}: has {declared} classes, the network gives {head.classes}; is it of other classes?"
        )
    for entry in sets:
        if not isinstance(entry.data, ImageSet):
            _check_activations(entry.name, entry.data, head, labelled=entry.is_id)
        elif entry.is_id and entry.data.labels is not None and network is not None:
            lowest, highest = int(entry.data.labels.min()), int(entry.data.labels.max())
            if lowest < 0:
                raise DataError(f"{entry.name}: labels must be in [0, {head.classes - 1}], got {lowest} to {highest}")
            if network.labels_of(entry.data) is None:
                raise DataError(f"{entry.name}: {_strange(entry.data, network, head.classes)}")


def _strange(images: ImageSet, network: Network, classes: int) -> str:
    """Say which classes of a set are the network's, which are not, and what to write."""
    assert images.labels is not None
    highest = int(images.labels.max())
    if highest >= (len(images.classes) or classes):
        return f"has {highest + 1} classes, the network gives {classes}; is it of other classes?"
    said = f"has {len(images.classes)} classes, the network gives {classes}"
    if network.class_names is not None:
        known = [name for name in images.classes if places_of([name], network.class_names, 0) is not None]
        other = [name for name in images.classes if name not in known]
        said += f"; {len(known)} are names of its classes, {len(other)} are not ({abridged(other)})"
    return (
        f"{said}; write classes = [...] in the benchmark's file, the names of all {classes} in the order of its outputs"
        " or a text file with one a line, or remove the folders of other classes"
    )


def _check_activations(name: str, data: ActivationsFile, head: Head, *, labelled: bool) -> None:
    """Check that activations are of this head, which makes the logits where they have none."""
    logits = head.classes if data.classes is None else data.classes
    if (data.features, logits) != (head.width, head.classes):
        raise DataError(
            f"{name}: has {data.features} features and {logits} logits per image, the head {head.width} and {head.classes};"
            " is it of another network?"
        )
    known = data.label_range() if labelled else None
    if known is not None and (known[0] < 0 or known[1] >= head.classes):
        raise DataError(f"{name}: labels must be in [0, {head.classes - 1}], got {known[0]} to {known[1]}")
    data.head = Head(head.weight.cpu(), head.offset.cpu())


def _given_head(bench: Benchmark, sets: Sequence[OpenSet], settings: Settings) -> Prepared:
    if bench.head is None:
        raise DataError(
            f"benchmark {bench.name}: all sets are activations, so it needs head = a safetensors or .npz file with weight and bias,"
            " or model="
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
    return Prepared(head, None, info, ChosenPrecision("fp32", "fp32", "activations were given"))

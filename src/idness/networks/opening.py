"""Opens a network: loads it, splits it, and finds out how a picture becomes its input."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from idness.core.errors import DataError, IdnessWarning, ModelError
from idness.core.files import key_of
from idness.core.scripts import Script
from idness.data import Batch, ImageSet, Preprocessing, preprocessing_for
from idness.data.batches import read_sample
from idness.data.preprocess import WAY
from idness.networks.classes import ENOUGH, by_chance, class_names_for, places_of, reordered
from idness.networks.engines.driver import ChosenEngine, Driver, default_batch
from idness.networks.loading import load_model
from idness.networks.precision import AS_ASKED, ChosenPrecision, choose_precision
from idness.networks.probing import as_input, example_for
from idness.networks.runs import facts_of, located
from idness.networks.split import SplitModel, fingerprint

SAMPLE = 64
"""How many images serve to find the head, to measure the precision and to look at the normalisation."""
PER_CLASS, MOST = 10, 1_000
"""How many images of each class serve to find the order of the classes where the answers look wrong, and the most of all."""
GOOD = 0.9
"""The share of right answers from which on the order of the classes is not in doubt."""


@dataclass(frozen=True, eq=False)
class Network:
    """Holds a network that is ready to run, and all that decides what it makes of a picture.

    Args:
        split: the network as features and head.
        how: how a picture becomes its input; none where nothing says, and then it runs on no picture.
        precision: of its forward passes.
        spec: how it was named, where it was loaded by name.
        class_names: the names of its classes, in the order of its outputs, where they are known.
        size: the height and width of every image that it runs on, where they are to be the same.
        engine: what runs it, where that was chosen.
    """

    split: SplitModel
    how: Preprocessing | None
    precision: ChosenPrecision = AS_ASKED
    spec: str = ""
    class_names: tuple[str, ...] | None = None
    size: tuple[int, int] | None = None
    engine: ChosenEngine | None = None

    @property
    def batch(self) -> int:
        """How many images it best sees at once."""
        if self.engine is not None:
            return self.engine.batch
        size = self.size or (None if self.how is None else self.how.size)
        return default_batch(torch.empty(0, 1, *(size or (1, 1))))

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return self.spec or type(self.split.model).__name__

    @property
    def preprocessing(self) -> Preprocessing:
        """How a picture becomes its input; an error where nothing says."""
        if self.how is None:
            raise _unknown(self.name)
        return self.how

    @cached_property
    def weights_sha256(self) -> str:
        """The hash of its parameters and buffers."""
        return fingerprint(self.split.model)

    @cached_property
    def identity(self) -> str:
        """The hash of all that decides its activations: weights, structure, code, layer, preprocessing, precision and engine."""
        # The same weights may compute something else in other code.
        script = Script.named(self.spec)
        code = "" if script is None else script.identity()
        settings = json.dumps(self.preprocessing.to_dict(), sort_keys=True)
        model, layer = self.split.model, ": ".join(filter(None, (self.split.layer, self.split.ending)))
        engine = [self.engine.key()] if self.engine is not None and self.engine.key() else []
        return key_of(WAY, self.weights_sha256, repr(model), layer, code, settings, self.precision.used, *engine)

    def labels_of(self, images: ImageSet) -> Tensor | None:
        """Give a set's labels in the order of the network's classes; none where it has none, or other classes."""
        classes, names = self.split.classes, images.classes
        if images.labels is None:
            return None
        labels = torch.from_numpy(images.labels)
        places = places_of(names, self.class_names, classes) if names else list(range(classes))
        if places is None or (len(labels) and int(labels.max()) >= len(places)):
            return None
        return torch.tensor(places)[labels]

    def predict(self, pixels: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Give the network's answers for images as they are read."""
        parts = [self.split.split(self.preprocessing.normalize(part)).logits for part in _batches(pixels)]
        return torch.cat(parts).argmax(dim=1).cpu().numpy()

    def check_size(self, source: str, pixels: NDArray[np.uint8]) -> None:
        """Refuse images of another size than those that the network was opened with."""
        found = pixels.shape[1:3]
        if self.size is not None and len(pixels) and found != self.size:
            raise DataError(
                f"{source}: images must be {self.size[0]} x {self.size[1]} after preprocessing, as those of the other sets are,"
                f" got {found[0]} x {found[1]}; give preprocessing= with resize or crop"
            )


def open_network(
    model: str | nn.Module,
    weights: str | Path | None = None,
    *,
    layer: str | None = None,
    multi_label: bool | None = None,
    preprocessing: Preprocessing | None = None,
    images: ImageSet | None = None,
    class_names: Sequence[str] = (),
    precision: str = "fp32",
    device: str = "cpu",
    workers: int | None = None,
    driver: Driver | None = None,
) -> Network:
    """Load a network and find all that is needed to run it on pictures.

    How a picture becomes its input is taken as given, or as the network says: by its attribute `preprocessing`, or by
    what torchvision, timm or the embedded benchmark know of it. Where nothing says, pictures are taken as they are, with
    values in [0, 1], but only if labelled images bear it out: the network must classify some of them better than chance.
    A warning then says what was assumed. Otherwise the network is refused, at once where there are images, and else when it
    is first run on a picture: a wrong guess would go unnoticed.

    Args:
        model: the network, or how to load it, as `load_model` takes it.
        weights: the file of its weights, for a network that is loaded by name.
        layer: the final linear layer's name, where it should not be searched.
        multi_label: whether an image may get several labels, or none, where the network does not show it.
        preprocessing: how a picture becomes its input, where the network does not say, or is not to be asked.
        images: a set that it will run on, labelled if possible; some of it is looked at.
        class_names: the names of its classes in the order of its outputs, where it does not say, or is not to be asked. Where nothing
            says, they are those of `images`, in another order if only that one explains the network's answers.
        precision: fp32, bf16 or auto.
        device: where it runs; auto takes a GPU where there is one.
        workers: how many threads decode images.
        driver: chooses the engine on some of `images`, or else on the first batch; the network runs as it is where there is none.
    """
    spec, weights = located(model if isinstance(model, str) else "", weights)
    loaded = (load_model(spec, weights) if isinstance(model, str) else model).to(_device(device))
    said = facts_of(weights)
    own = said.preprocessing or preprocessing_for(loaded, spec, None if weights is None else str(weights))
    known, guess = _suited(preprocessing or own, loaded, images)
    part, sample = (None, None) if images is None else read_sample(images, guess, SAMPLE, workers=workers)
    example = example_for(guess) if sample is None else guess.normalize(sample.pixels)
    try:
        split = SplitModel(loaded, layer, example=example, multi_label=multi_label)
    except ModelError as error:
        if known is None and sample is not None:
            raise _unknown(spec or type(loaded).__name__, f"; taken as they are, {error}") from error
        taken = input_channels(loaded)
        if known is not None and taken not in (None, known.channels):
            raise ModelError(
                f"{spec or type(loaded).__name__}: takes images of {taken} channels, mean and std have {known.channels} numbers;"
                " give preprocessing= with one number per channel"
            ) from error
        raise
    split.free_layout(weights=bool(spec))
    used = choose_precision(precision, split, None if sample is None else example)
    classes = split.classes
    if class_names and len(class_names) != classes:
        raise DataError(
            f"class_names= must name the network's {classes} classes, got {len(class_names)}; is it of other classes?"
        )
    names = tuple(class_names) or said.class_names or class_names_for(loaded, spec, classes)
    network = Network(split, known, used, spec, names)
    if driver is not None and used.used == "fp32":
        split.driver = driver
    if images is None or part is None or sample is None:
        return network
    height, width = sample.pixels.shape[1:3]
    network = replace(network, how=guess, size=(height, width))
    if split.driver is not None:
        assert example is not None
        network = replace(network, engine=split.driver.decide(split, as_input(loaded, example)))
    network, order = _ordered(network, images, part, sample)
    doubts = (order, known.suspicion(sample.pixels) if known is not None else _assumed(network, part, sample))
    for doubt in filter(None, doubts):
        warnings.warn(doubt, IdnessWarning, stacklevel=2)
    return network


def input_channels(model: nn.Module) -> int | None:
    """Say how many channels a network's images have, by its first convolution; none where it has none."""
    first = next((module for module in model.modules() if isinstance(module, nn.Conv2d)), None)
    return None if first is None else first.in_channels


def _suited(
    known: Preprocessing | None, model: nn.Module, images: ImageSet | None
) -> tuple[Preprocessing | None, Preprocessing]:
    """Give what is known of a network's input, and what is tried where nothing is, for as many channels as it has."""
    unusual = images.channels if images is not None and images.channels != 3 else None
    if input_channels(model) == 1:
        unusual = 1
    if unusual is None:
        return known, known or Preprocessing()
    known = known and known.of_channels(unusual)
    return known, known or Preprocessing().of_channels(unusual)


def _ordered(network: Network, images: ImageSet, part: ImageSet, sample: Batch) -> tuple[Network, str]:
    """Name the classes after those of a labelled data set if the network has no names; also return what to warn of.

    The order is the network's: by number or ImageNet name, else the one in which the answers are better than chance. Without such
    evidence the classes stay unnamed. More images are read only if many answers are wrong.
    """
    classes, names = network.split.classes, images.classes
    if network.class_names is not None or images.labels is None or len(names) != classes:
        return network, ""
    places = np.array(places_of(names, None, classes) or [], np.int64)
    if sorted(places) != list(range(classes)):
        return network, ""
    named = tuple(names[number] for number in np.argsort(places))
    labels, predicted = _answers(network, part, sample)
    said = ""
    if float((places[labels] == predicted).mean()) < GOOD and len(labels) >= ENOUGH:
        if SAMPLE < PER_CLASS * classes <= MOST:
            labels, predicted = _answers(network, *read_sample(images, network.preprocessing, PER_CLASS * classes))
        named, said = reordered(images.source, named, places[labels], predicted)
    right = int((places[labels] == predicted).sum())
    if not said and by_chance(right, len(labels), classes):
        return network, ""
    return replace(network, class_names=named), said


def _answers(network: Network, images: ImageSet, batch: Batch) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    assert images.labels is not None
    return images.labels[batch.index], network.predict(batch.pixels)


def _assumed(network: Network, images: ImageSet, sample: Batch) -> str:
    """Say what is assumed of the pictures, if labelled images bear it out; refuse the network otherwise."""
    labels = network.labels_of(images)
    if labels is None:
        raise _unknown(network.name)
    predicted = network.predict(sample.pixels)
    right = int((predicted == labels.numpy()[sample.index]).sum())
    found = f"as they are, with values in [0, 1], {right} of {len(predicted)} labelled images are classified rightly"
    if by_chance(right, len(predicted), network.split.classes):
        tried = f"; taken {found}, no more than by chance"
        raise _unknown(network.name, tried, ", or weights= if these are not its trained ones")
    return f"{network.name}: how a picture becomes its input is not known; taken {found}, so that is assumed"


def _batches(pixels: NDArray[np.uint8]) -> Iterator[NDArray[np.uint8]]:
    return (pixels[start : start + SAMPLE] for start in range(0, len(pixels), SAMPLE))


def _unknown(name: str, tried: str = "", remedy: str = "") -> ModelError:
    return ModelError(
        f"{name}: how a picture becomes its input is not known{tried};"
        f" give preprocessing=, or set model.preprocessing{remedy}"
    )


def _device(wanted: str) -> torch.device:
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"device must be auto, cpu, cuda or another that is there, got {wanted!r} ({why}); use device='cpu'"
        ) from error
    return device

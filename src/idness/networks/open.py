"""Opens a network: loads and splits it, and resolves its preprocessing, class names, precision and engine."""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from idness.core.errors import DataError, IdnessWarning, ModelError
from idness.core.files import key_of, sha256
from idness.core.scripts import Script
from idness.data import Batch, ImageSet, Preprocessing, preprocessing_for
from idness.data.batches import limit_threads, read_sample
from idness.data.preprocess import WAY
from idness.networks.class_names import by_chance, class_names_for, places_of
from idness.networks.engines import (
    AS_ASKED,
    UNKNOWN,
    ChosenEngine,
    ChosenPrecision,
    EngineRunner,
    batch_for,
    choose_precision,
)
from idness.networks.head_search import noise
from idness.networks.load import load_model
from idness.networks.modules import as_input, fingerprint
from idness.networks.run_folder import facts_of, located
from idness.networks.split import SplitModel

SAMPLE = 64
"""Number of images that are read to find the head, measure the precision and check the normalisation."""
FEW_RIGHT = 0.3
"""Accuracy below which class names taken from folders come with a warning."""


@dataclass(frozen=True)
class ModelOptions:
    """Which network to use, and how to run it.

    Args:
        model: the network, or its name as `load_model` takes it.
        weights: the file of its weights, if it is loaded by name.
        layer: the final linear layer's name, if it should not be searched.
        multi_label: whether an image may have several labels or none, if the network does not show it.
        class_names: the names of its classes in the order of its outputs, if the network's own are missing or wrong. By default
            they are those of a labelled data set if its labels agree with the network's predictions.
        preprocessing: the preprocessing, if the network's own is missing or wrong.
        precision: fp32, bf16, or auto, which measures both.
        engine: eager, compiled, onnxruntime, openvino or auto; the unchanged network if `None`.
        device: the device; auto takes a GPU if there is one.
        threads: the number of threads of the network and of decoding together; all cores if `None`.
    """

    model: str | nn.Module
    weights: str | Path | None = None
    layer: str | None = None
    multi_label: bool | None = None
    class_names: Sequence[str] = ()
    preprocessing: Preprocessing | None = None
    precision: str = "fp32"
    engine: str | None = None
    device: str = "cpu"
    threads: int | None = None

    def located(self) -> tuple[str, str | Path | None]:
        """Return the network's name (empty for a module) and weights, also for a run folder."""
        return located(self.model if isinstance(self.model, str) else "", self.weights)


@dataclass(frozen=True, eq=False)
class Network:
    """A network that is ready to run, and everything that decides its activations.

    Args:
        split: the network as features and head.
        how: its preprocessing; `None` if unknown, and then it runs on no image.
        precision: the precision of its forward passes.
        spec: its name, if it was loaded by name.
        class_names: the names of its classes in the order of its outputs, if they are known.
        size: the height and width of every input, if they are to be the same.
        engine: the engine, if it was chosen.
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
        """The batch size."""
        if self.engine is not None:
            return self.engine.batch
        return batch_for(self.size or (None if self.how is None else self.how.size) or (1, 1))

    @property
    def name(self) -> str:
        """The name for messages."""
        return self.spec or type(self.split.model).__name__

    @property
    def preprocessing(self) -> Preprocessing:
        """The preprocessing; raises an error if it is unknown."""
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
        settings = json.dumps(self.preprocessing.to_dict(), sort_keys=True)
        layer = ": ".join(filter(None, (self.split.layer, self.split.ending)))
        engine = [self.engine.key()] if self.engine is not None and self.engine.key() else []
        code = _code(self.spec, self.split.model)
        return key_of(
            WAY, self.weights_sha256, repr(self.split.model), layer, code, settings, self.precision.used, *engine
        )

    def labels_of(self, images: ImageSet) -> Tensor | None:
        """Return a data set's labels as the network's outputs; `None` if it has none, or other classes."""
        classes, names = self.split.classes, images.classes
        if images.labels is None:
            return None
        labels = torch.from_numpy(images.labels)
        places = places_of(names, self.class_names, classes) if names else list(range(classes))
        if places is None or (len(labels) and int(labels.max()) >= len(places)):
            return None
        return torch.tensor(places)[labels]

    def predict(self, pixels: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return the predicted classes of images as they are read."""
        return self.split.split(self.preprocessing.normalize(pixels)).logits.argmax(dim=1).cpu().numpy()

    def check_size(self, source: str, pixels: NDArray[np.uint8]) -> None:
        """Refuse images of another size than those that the network was opened with."""
        found = pixels.shape[1:3]
        if self.size is not None and len(pixels) and found != self.size:
            raise DataError(
                f"{source}: images must be {self.size[0]} x {self.size[1]} after preprocessing, like those of the other sets,"
                f" got {found[0]} x {found[1]}; pass preprocessing= with resize or crop"
            )


def open_network(
    options: ModelOptions | str | nn.Module,
    *,
    images: ImageSet | None = None,
    expected: int | None = None,
    workers: int | None = None,
) -> Network:
    """Load a network and resolve everything that is needed to run it on images.

    The preprocessing is the given one, or the network's: its attribute `preprocessing`, or what torchvision, timm or the embedded
    benchmark declare. If it is unknown, images are passed with values in [0, 1], but only if labelled images support that: accuracy
    must be better than chance, and a warning names the assumption. Otherwise the network is refused: with images at once, else when
    it first runs on an image.

    Args:
        options: the network, or its name, or either with options.
        images: a data set that it will run on, labelled if possible; a sample of it is read.
        expected: the number of images to expect, for the choice of the engine; those of `images` by default.
        workers: the number of threads that decode images.
    """
    if not isinstance(options, ModelOptions):
        options = ModelOptions(options)
    if options.threads is not None:
        limit_threads(options.threads)
    spec, weights = options.located()
    model = options.model
    loaded = (load_model(spec, weights) if isinstance(model, str) else model).to(_device(options.device))
    facts = facts_of(weights)
    own = facts.preprocessing or preprocessing_for(loaded, spec, None if weights is None else str(weights))
    known, guess = _for_channels(options.preprocessing or own, loaded, images)
    part, sample = (None, None) if images is None else read_sample(images, guess, SAMPLE, workers=workers)
    example = example_for(guess) if sample is None else guess.normalize(sample.pixels)
    split = _split(loaded, options, spec, known, example, sampled=sample is not None)
    split.free_layout(weights=bool(spec))
    precision = choose_precision(options.precision, split, None if sample is None else example)
    given = tuple(options.class_names)
    if given and len(given) != split.classes:
        raise DataError(
            f"class_names= must name the network's {split.classes} classes, got {len(given)}; is it of other classes?"
        )
    names = given or facts.class_names or class_names_for(loaded, spec, split.classes)
    network = Network(split, known, precision, spec, names)
    if options.engine is not None and precision.used == "fp32":
        split.runner = EngineRunner(options.engine, expected or (UNKNOWN if images is None else len(images)))
    if images is None or part is None or sample is None:
        return network
    assert example is not None
    network = replace(network, how=guess, size=sample.pixels.shape[1:3])
    if split.runner is not None:
        network = replace(network, engine=split.runner.prepare(split, as_input(loaded, example)))
    unsure = ""
    if names is None:
        network, unsure = _named(network, images.source, part, sample)
    doubt = known.suspicion(sample.pixels) if known is not None else _assumption(network, part, sample)
    for text in filter(None, (unsure, doubt)):
        warnings.warn(text, IdnessWarning, stacklevel=2)
    return network


def example_for(preprocessing: Preprocessing | None) -> Tensor | None:
    """Return noise of the size of preprocessed images; `None` if it is unknown."""
    if preprocessing is None or preprocessing.size is None:
        return None
    return noise((preprocessing.channels, *preprocessing.size))


def input_channels(model: nn.Module) -> int | None:
    """Return the number of channels of a network's images, by its first convolution; `None` if it has none."""
    first = next((module for module in model.modules() if isinstance(module, nn.Conv2d)), None)
    return None if first is None else first.in_channels


def _for_channels(
    known: Preprocessing | None, model: nn.Module, images: ImageSet | None
) -> tuple[Preprocessing | None, Preprocessing]:
    """Return the known preprocessing, and the one to try if it is unknown, for as many channels as the network has."""
    unusual = images.channels if images is not None and images.channels != 3 else None
    if input_channels(model) == 1:
        unusual = 1
    if unusual is None:
        return known, known or Preprocessing()
    known = known and known.of_channels(unusual)
    return known, known or Preprocessing().of_channels(unusual)


def _split(
    model: nn.Module,
    options: ModelOptions,
    spec: str,
    known: Preprocessing | None,
    example: Tensor | None,
    *,
    sampled: bool,
) -> SplitModel:
    try:
        return SplitModel(model, options.layer, example=example, multi_label=options.multi_label)
    except ModelError as error:
        name, taken = spec or type(model).__name__, input_channels(model)
        if known is None and sampled:
            raise _unknown(name, f"; without any, {error}") from error
        if known is not None and taken not in (None, known.channels):
            raise ModelError(
                f"{name}: takes images of {taken} channels, mean and std have {known.channels} numbers;"
                " pass preprocessing= with one number per channel"
            ) from error
        raise


def _named(network: Network, source: str, images: ImageSet, sample: Batch) -> tuple[Network, str]:
    """Name the classes after a labelled data set if the network's predictions agree with it, and return what to warn of."""
    classes, names = network.split.classes, images.classes
    if images.labels is None or len(names) != classes:
        return network, ""
    places = np.array(places_of(names, None, classes) or [], np.int64)
    if sorted(places) != list(range(classes)):
        return network, ""
    right = int((places[images.labels[sample.index]] == network.predict(sample.pixels)).sum())
    count = len(sample.pixels)
    if by_chance(right, count, classes):
        return network, ""
    named = replace(network, class_names=tuple(names[number] for number in np.argsort(places)))
    if right >= FEW_RIGHT * count:
        return named, ""
    return named, (
        f"{source}: the network predicts the folder's class for only {right} of {count} images; if the classes are in another"
        " order, pass class_names= in the order of the network's outputs"
    )


def _assumption(network: Network, images: ImageSet, sample: Batch) -> str:
    """Describe the assumed preprocessing if labelled images support it; refuse the network otherwise."""
    labels = network.labels_of(images)
    if labels is None:
        raise _unknown(network.name)
    predicted = network.predict(sample.pixels)
    right = int((predicted == labels.numpy()[sample.index]).sum())
    found = f"{right} of {len(predicted)} labelled images are classified correctly"
    if by_chance(right, len(predicted), network.split.classes):
        raise _unknown(
            network.name,
            f"; with values in [0, 1], {found}, which is chance level",
            ", or weights= if these are not its trained ones",
        )
    return f"{network.name}: preprocessing is unknown; values in [0, 1] are assumed, as {found}"


def _unknown(name: str, tried: str = "", remedy: str = "") -> ModelError:
    return ModelError(
        f"{name}: preprocessing is unknown{tried}; pass preprocessing= or set model.preprocessing{remedy}"
    )


def _code(spec: str, model: nn.Module) -> str:
    """Hash the code of a network that a Python file makes: the same weights may compute something else in other code."""
    script = Script.named(spec)
    if script is None:
        return ""
    files = set()
    for kind in {type(module) for module in model.modules()}:
        try:
            files.add(Path(inspect.getfile(kind)).resolve())
        except (TypeError, OSError):  # classes that were made at run time
            continue
    own = [file for file in sorted(files - {script.file.resolve()}) if "site-packages" not in file.parts]
    return key_of(script.identity(), *map(sha256, own)) if own else script.identity()


def _device(wanted: str) -> torch.device:
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"device must be auto, cpu, cuda or another available one, got {wanted!r} ({why}); use device='cpu'"
        ) from error
    return device

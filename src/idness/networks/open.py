"""Opening of networks: loading, splitting, and resolving preprocessing, class names, precision and engine.

The second half matches class names, that is, the labels of a data set to the outputs of a network.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from unicodedata import normalize

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from idness.core.errors import DataError, IdnessWarning, ModelError, needed
from idness.core.files import key_of
from idness.core.scripts import Script
from idness.data import Batch, ImageSet, Preprocessing, embedded, preprocessing_for
from idness.data.batches import limit_threads, read_sample
from idness.data.preprocess import WAY
from idness.data.sets import imagenet_classes
from idness.networks import engines
from idness.networks.head_search import noise
from idness.networks.load import facts_of, load_model, located_model
from idness.networks.modules import as_input, best_layout, module_fingerprint
from idness.networks.split import SplitModel

Numbers = NDArray[np.int64]
SAMPLE = 64
"""Number of images that are read to find the head, measure the precision and check the normalisation."""
FEW_RIGHT = 0.3
"""Accuracy below which a warning is issued for class names taken from folders."""
ENOUGH = 16
"""Minimum number of labelled images for judging accuracy."""
COUNTED = 64
"""Maximum number of images that count as independent: an untrained network predicts the same for all images of a class, so thousands
of them are little more evidence than a few dozen."""
CHANCE = 0.01
"""Probability of reaching an accuracy by chance, above which the accuracy is considered at chance level."""


@dataclass(frozen=True)
class ModelOptions:
    """A network and the options to run it with.

    Args:
        model: the network, or a name for `load_model`.
        weights: the file of its weights, if it is loaded by name.
        layer: the name of the final linear layer; found automatically by default.
        multi_label: whether an image may have several labels or none; determined from the network by default.
        class_names: the names of its classes in the order of its outputs, if the network's own are missing or wrong. By default
            they are those of a labelled data set if its labels agree with the network's predictions.
        preprocessing: the preprocessing, if the network's own is missing or wrong.
        precision: fp32, bf16, or auto (bf16 on a GPU).
        engine: eager, onnxruntime, openvino or auto; `None` runs the unchanged network.
        device: the device; auto uses a GPU if available.
        threads: the total number of threads for the network and for decoding; all cores if `None`.
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
        """Return the network's name (empty for a module) and its weights, resolving a run folder."""
        return located_model(self.model if isinstance(self.model, str) else "", self.weights)


@dataclass(frozen=True, eq=False)
class Network:
    """A network that is ready to run, with everything that determines its activations.

    `how` is its preprocessing, `None` if unknown; `size` is the required height and width of every input, if any.
    """

    split: SplitModel
    how: Preprocessing | None
    precision: engines.ChosenPrecision = engines.AS_ASKED
    spec: str = ""
    class_names: tuple[str, ...] | None = None
    size: tuple[int, int] | None = None
    engine: engines.ChosenEngine | None = None

    @property
    def batch(self) -> int:
        """The batch size."""
        return engines.batch_for(self.size or (None if self.how is None else self.how.size) or (1, 1))

    @property
    def name(self) -> str:
        """The name for messages."""
        return self.spec or type(self.split.model).__name__

    @property
    def preprocessing(self) -> Preprocessing:
        """The preprocessing; an error is raised if it is unknown."""
        if self.how is None:
            raise _unknown(self.name)
        return self.how

    @cached_property
    def weights_sha256(self) -> str:
        """The hash of its parameters and buffers."""
        return module_fingerprint(self.split.model)

    @cached_property
    def identity(self) -> str:
        """A hash of everything that determines its activations: weights, structure, code, layer, preprocessing, precision, engine."""
        settings = json.dumps(self.preprocessing.to_dict(), sort_keys=True)
        layer = ": ".join(filter(None, (self.split.layer, self.split.ending)))
        engine = [] if self.engine is None or self.engine.used == "eager" else [self.engine.used]
        script = Script.named(self.spec)
        code = "" if script is None else script.identity()
        structure = repr(self.split.model)
        return key_of(WAY, self.weights_sha256, structure, layer, code, settings, self.precision.used, *engine)

    def labels_of(self, images: ImageSet) -> Tensor | None:
        """Return a data set's labels as output indices of the network; `None` if it has no labels, or other classes."""
        classes, names = self.split.classes, images.classes
        if images.labels is None:
            return None
        labels = torch.from_numpy(images.labels)
        places = places_of(names, self.class_names, classes) if names else list(range(classes))
        if places is None or (len(labels) and int(labels.max()) >= len(places)):
            return None
        return torch.tensor(places)[labels]

    def check_size(self, source: str, pixels: NDArray[np.uint8]) -> None:
        """Raise if images have another size than those with which the network was opened."""
        found = pixels.shape[1:3]
        if self.size is not None and len(pixels) and found != self.size:
            wanted, got = (f"{height} x {width}" for height, width in (self.size, found))
            like = f"{wanted} after preprocessing, like those of the other sets"
            raise DataError(f"{source}: images must be {like}, got {got}; pass preprocessing= with resize or crop")


def open_network(
    options: ModelOptions | str | nn.Module,
    *,
    images: ImageSet | None = None,
    expected: int | None = None,
    workers: int | None = None,
) -> Network:
    """Load a network and resolve everything that is needed to run it on images.

    The preprocessing is the given one or the network's own: its attribute `preprocessing`, or what torchvision, timm or the embedded
    benchmark declares. If it is unknown, an error is raised, immediately if `images` are given, else when an image is first run. A
    sample of `images` is read; the engine is chosen for `expected` images, by default their number.
    """
    if not isinstance(options, ModelOptions):
        options = ModelOptions(options)
    limit_threads(options.threads)
    spec, weights = options.located()
    model = options.model
    loaded = (load_model(spec, weights) if isinstance(model, str) else model).to(find_device(options.device))
    name, (_, trained_names, own) = spec or type(loaded).__name__, facts_of(weights)
    taken = next((module.in_channels for module in loaded.modules() if isinstance(module, nn.Conv2d)), None)
    own = own or preprocessing_for(loaded, spec, None if weights is None else str(weights))
    how = options.preprocessing or own
    channels = 1 if taken == 1 else 3 if images is None else images.channels
    if how is not None and channels != 3 and how.plain:
        how = replace(how, mean=(0.0,) * channels, std=(1.0,) * channels)
    sample, example = None, example_for(how)
    if images is not None:
        if how is None:
            raise _unknown(name)
        part, sample = read_sample(images, how, SAMPLE, workers=workers)
        example = how.normalize(sample.pixels)
    split = SplitModel(loaded, options.layer, example=example, multi_label=options.multi_label)
    if spec and example is not None:
        best_layout(loaded, as_input(loaded, example[:2]))
    precision = engines.choose_precision(options.precision, split.device.type)
    given = tuple(options.class_names)
    if given and len(given) != split.classes:
        raise DataError(f"class_names= must have {split.classes} names, one per class of the network, got {len(given)}")
    names = given or trained_names or class_names_for(loaded, spec, split.classes)
    if options.engine is not None and precision.used == "fp32":
        known = engines.UNKNOWN if images is None else len(images)
        split.runner = engines.EngineRunner(options.engine, expected or known)
    network = Network(split, how, precision, spec, names)
    if images is None or how is None or sample is None or example is None:
        return network
    engine = None if split.runner is None else split.runner.prepare(split, as_input(loaded, example))
    network = replace(network, size=sample.pixels.shape[1:3], engine=engine)
    if names is None:
        network = replace(network, class_names=_folder_names(network, images.source, part, sample))
    if doubt := how.suspicion(sample.pixels):
        warnings.warn(doubt, IdnessWarning, stacklevel=2)
    return network


def example_for(preprocessing: Preprocessing | None) -> Tensor | None:
    """Return noise of the size of preprocessed images; `None` if the size is unknown."""
    if preprocessing is None or preprocessing.size is None:
        return None
    return noise((preprocessing.channels, *preprocessing.size))


def _folder_names(network: Network, source: str, images: ImageSet, sample: Batch) -> tuple[str, ...] | None:
    """Return the class names of a labelled data set in the order of the outputs, if the network's predictions agree with them."""
    classes, names, count = network.split.classes, images.classes, len(sample.pixels)
    places = np.array(places_of(names, None, classes) or [], np.int64)
    if images.labels is None or len(names) != classes or sorted(places) != list(range(classes)):
        return None
    predicted = network.split.split(network.preprocessing.normalize(sample.pixels)).logits.argmax(dim=1).cpu().numpy()
    right = int((places[images.labels[sample.index]] == predicted).sum())
    if by_chance(right, count, classes):
        return None
    if right < FEW_RIGHT * count:
        warnings.warn(
            f"{source}: the network predicts the folder's class for only {right} of {count} images; if the classes are in another"
            " order, pass class_names= in the order of the network's outputs",
            IdnessWarning,
            stacklevel=3,
        )
    return tuple(names[number] for number in np.argsort(places))


def _unknown(name: str) -> ModelError:
    return ModelError(f"{name}: preprocessing is unknown; pass preprocessing= or set model.preprocessing")


def find_device(wanted: str) -> torch.device:
    """Return a device by name; `auto` is a GPU if available."""
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.zeros(1, device=wanted).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(f"device must be available, got {wanted!r} ({why}); use device='cpu'") from error


# Class names


def by_chance(right: int, count: int, classes: int) -> bool:
    """Whether so many correct predictions are likely by chance."""
    counted, share = min(count, COUNTED), 1 / max(classes, 2)
    found = round(counted * right / max(count, 1))
    # The tail of a binomial, without scipy.stats, which is slow to import.
    tail = (math.comb(counted, k) * share**k * (1 - share) ** (counted - k) for k in range(found, counted + 1))
    return sum(tail) > CHANCE


def check_accuracy(source: str, labels: Numbers, predicted: Numbers, classes: int, *, any_accuracy: bool) -> str:
    """Return a warning if accuracy on labelled images is at chance level; raise instead unless `any_accuracy` is set."""
    right, count = int((labels == predicted).sum()), len(labels)
    if count < ENOUGH or not by_chance(right, count, classes):
        return ""
    text = f"{source}: accuracy is {100 * right / count:.1f} % on {count:,} labelled images, chance level for {classes} classes"
    text += "; check the weights, the order of the classes and the preprocessing"
    if not any_accuracy:
        raise ModelError(f"{text}, or pass any_accuracy=True to continue")
    return text


def places_of(names: Sequence[str], known: Sequence[str] | None, classes: int) -> list[int] | None:
    """Return the network's output index for each class name of a data set, or `None` if the classes differ.

    Names are first compared with the network's (`known`), with ImageNet's, and as numbers. Classes are matched by position only if their
    number is equal and no name is one of the network's: a data set that shares some names would be matched incorrectly.
    """
    for listed in (known, imagenet_classes() if classes == len(imagenet_classes()) else None):
        exact, plain = (
            {key(name): number for number, name in reversed(list(enumerate(listed or ())))} for key in (str, _plain)
        )
        places = [exact.get(name, plain.get(_plain(name))) for name in names]
        found = [place for place in places if place is not None]
        if len(found) == len(names):
            return found
        if found:
            return None
    if all(name.isdecimal() for name in names) and len({int(name) for name in names}) == len(names):
        numbers = [int(name) for name in names]
        if max(numbers, default=classes) < classes:
            return numbers
    return list(range(classes)) if len(names) == classes else None


def class_names_for(model: nn.Module, spec: str, classes: int) -> tuple[str, ...] | None:
    """Return a network's class names: its attribute `class_names`, or the published ones; `None` if unknown."""
    own = getattr(model, "class_names", None)
    if isinstance(own, Sequence) and not isinstance(own, str):
        if len(own) != classes:
            raise ModelError(f"class_names of the network must have {classes} names, one per class, got {len(own)}")
        return tuple(str(name) for name in own)
    known = _published(model, spec)
    return known if known is not None and len(known) == classes else None  # else it was fine-tuned to other classes


def _published(model: nn.Module, spec: str) -> tuple[str, ...] | None:
    kind, _, name = spec.partition(":")
    if embedded.owns(spec):
        return embedded.classes(kind)
    if kind == "torchvision":
        models = needed("torchvision.models", spec, "models", ModelError)
        entry = next(iter(models.get_model_weights(name.partition(":")[0])), None)
        return tuple(entry.meta["categories"]) if entry is not None and "categories" in entry.meta else None
    if kind == "timm" or hasattr(model, "pretrained_cfg"):
        data = needed("timm.data", type(model).__name__, "models", ModelError)
        subset = data.infer_imagenet_subset(model)
        if subset is None:
            return None
        info = data.ImageNetInfo(subset)
        # Folders of the usual thousand classes are recognised by their ids anyway, and words are easier to read.
        return tuple(info.label_descriptions() if info.num_classes() == 1000 else info.label_names())
    labels = getattr(getattr(model, "config", None), "id2label", None)
    if isinstance(labels, Mapping) and sorted(labels) == list(range(len(labels))):
        listed = tuple(str(labels[number]) for number in range(len(labels)))
        # Hugging Face's default names are LABEL_0, LABEL_1, ...
        return None if all(name == f"LABEL_{number}" for number, name in enumerate(listed)) else listed
    return None


def _plain(name: str) -> str:
    """Return a name for comparison, ignoring case, spaces, dashes, underscores and the encoding of accents."""
    return " ".join(normalize("NFKC", name).casefold().replace("_", " ").replace("-", " ").split())

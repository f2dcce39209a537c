"""Opens a network: loads it, splits it, and finds out how a picture becomes its input."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from idness.core.errors import IdnessWarning, ModelError
from idness.core.extras import needed
from idness.core.files import key_of
from idness.core.scripts import Script
from idness.data import Batch, ImageSet, Preprocessing, embedded, preprocessing_for
from idness.data.reading import read_sample
from idness.networks.loading import load_model
from idness.networks.precision import AS_ASKED, ChosenPrecision, choose_precision
from idness.networks.split import SplitModel, fingerprint

SAMPLE = 64
"""How many images serve to find the head, to measure the precision and to look at the normalisation."""
CHANCE = 0.01
"""A guess at the preprocessing stands if luck alone would make as many answers right less often than this."""


@dataclass(frozen=True, eq=False)
class Network:
    """Holds a network that is ready to run, and all that decides what it makes of a picture.

    Args:
        split: the network as features and head.
        how: how a picture becomes its input; none where nothing says, and then it runs on no picture.
        precision: of its forward passes.
        spec: how it was named, where it was loaded by name.
        class_names: the names of its classes, where they are known.
    """

    split: SplitModel
    how: Preprocessing | None
    precision: ChosenPrecision = AS_ASKED
    spec: str = ""
    class_names: tuple[str, ...] | None = None

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
        """The hash of all that decides its activations: weights, structure, code, layer, preprocessing and precision."""
        # The same weights may compute something else in other code.
        script = Script.named(self.spec)
        code = "" if script is None else script.identity()
        settings = json.dumps(self.preprocessing.to_dict(), sort_keys=True)
        model = self.split.model
        return key_of(self.weights_sha256, repr(model), self.split.layer, code, settings, self.precision.used)

    def labels_of(self, images: ImageSet) -> Tensor | None:
        """Give a set's labels in the order of the network's classes; none where it has none, or other classes."""
        classes, names = self.split.linear.out_features, images.classes
        if images.labels is None:
            return None
        labels = torch.from_numpy(images.labels)
        if self.class_names is not None and names and set(names) <= set(self.class_names):
            return torch.tensor([self.class_names.index(name) for name in names])[labels]
        other = (names and len(names) != classes) or (len(labels) and int(labels.max()) >= classes)
        return None if other else labels


def open_network(
    model: str | nn.Module,
    weights: str | Path | None = None,
    *,
    layer: str | None = None,
    preprocessing: Preprocessing | None = None,
    images: ImageSet | None = None,
    precision: str = "fp32",
    device: str = "cpu",
    workers: int | None = None,
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
        preprocessing: how a picture becomes its input, where the network does not say, or is not to be asked.
        images: a set that it will run on, labelled if possible; some of it is looked at.
        precision: fp32, bf16 or auto.
        device: where it runs; auto takes a GPU where there is one.
        workers: how many threads decode images.
    """
    spec = model if isinstance(model, str) else ""
    loaded = (load_model(model, weights) if isinstance(model, str) else model).to(_device(device))
    known = preprocessing or preprocessing_for(loaded, spec, None if weights is None else str(weights))
    guess = known or Preprocessing()
    part, sample = (None, None) if images is None else read_sample(images, guess, SAMPLE, workers=workers)
    example = None if guess.size is None else torch.zeros(2, 3, *guess.size)
    example = example if sample is None else guess.normalize(sample.pixels)
    try:
        split = SplitModel(loaded, layer, example=None if example is None else example[:2])
    except ModelError as error:
        if known is None and sample is not None:
            raise _unknown(spec or type(loaded).__name__, f"; taken as they are, {error}") from error
        raise
    split.free_layout(weights=bool(spec))
    used = choose_precision(precision, split, None if sample is None else example)
    network = Network(split, known, used, spec, class_names_for(loaded, spec))
    doubt = None if known is None or sample is None else known.suspicion(sample.pixels)
    if known is None and part is not None and sample is not None:
        network = replace(network, how=guess)
        doubt = _assumed(network, part, sample)
    if doubt is not None:
        warnings.warn(doubt, IdnessWarning, stacklevel=2)
    return network


def class_names_for(model: nn.Module, spec: str) -> tuple[str, ...] | None:
    """Find the names of a network's classes: its own `class_names`, the embedded benchmark's, or torchvision's."""
    own = getattr(model, "class_names", None)
    if isinstance(own, Sequence) and not isinstance(own, str):
        return tuple(str(name) for name in own)
    if embedded.owns(spec):
        return embedded.classes()
    kind, _, name = spec.partition(":")
    if kind == "torchvision":
        models = needed("torchvision.models", spec, "models", ModelError)
        entry = next(iter(models.get_model_weights(name)), None)
        return tuple(entry.meta["categories"]) if entry is not None and "categories" in entry.meta else None
    return None


def _assumed(network: Network, images: ImageSet, sample: Batch) -> str:
    """Say what is assumed of the pictures, if labelled images bear it out; refuse the network otherwise."""
    from scipy.stats import binom

    labels = network.labels_of(images)
    if labels is None:
        raise _unknown(network.name)
    logits = network.split.split(network.preprocessing.normalize(sample.pixels)).logits
    right = int((logits.argmax(dim=1).cpu() == labels[torch.from_numpy(sample.index)]).sum())
    found = f"as they are, with values in [0, 1], {right} of {len(logits)} labelled images are classified rightly"
    if binom.sf(right - 1, len(logits), 1 / logits.shape[1]) > CHANCE:
        raise _unknown(network.name, f"; taken {found}, no more than by chance")
    return f"{network.name}: how a picture becomes its input is not known; taken {found}, so that is assumed"


def _unknown(name: str, tried: str = "") -> ModelError:
    return ModelError(
        f"{name}: how a picture becomes its input is not known{tried}; give preprocessing=, or set model.preprocessing"
    )


def _device(wanted: str) -> torch.device:
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.device(wanted)
    except RuntimeError as error:
        raise ModelError(f"device must be auto, cpu, cuda or such, got {wanted!r}") from error

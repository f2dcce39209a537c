"""How the labels of a data set and the classes of a network belong together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import nn

from idness.core.errors import ModelError
from idness.core.extras import needed
from idness.data import embedded
from idness.data.open import imagenet_classes

Numbers = NDArray[np.int64]
ENOUGH = 16
"""Labelled images below which accuracy is not judged."""
COUNTED = 64
"""Most images that count as independent: an untrained network gives all images of a class the same answer, so thousands of them
are little more evidence than a few dozen."""
CHANCE = 0.01
"""Probability of reaching an accuracy by luck above which it is at chance level."""


def by_chance(right: int, count: int, classes: int) -> bool:
    """Whether luck alone may give so many correct predictions."""
    counted, share = min(count, COUNTED), 1 / max(classes, 2)
    found = round(counted * right / max(count, 1))
    # The tail of a binomial, without scipy.stats, which takes long to import.
    tail = (math.comb(counted, k) * share**k * (1 - share) ** (counted - k) for k in range(found, counted + 1))
    return sum(tail) > CHANCE


def check_accuracy(source: str, labels: Numbers, predicted: Numbers, classes: int, *, any_accuracy: bool) -> str:
    """Return a warning if accuracy on labelled images is at chance level, empty if it is not or there are too few images.

    Raises:
        ModelError: if accuracy is at chance level, unless `any_accuracy` is set.
    """
    right, count = int((labels == predicted).sum()), len(labels)
    if count < ENOUGH or not by_chance(right, count, classes):
        return ""
    text = (
        f"{source}: accuracy is {100 * right / count:.1f} % on {count:,} labelled images, chance level for {classes} classes;"
        " check the weights, the order of the classes and the preprocessing"
    )
    if not any_accuracy:
        raise ModelError(f"{text}, or pass any_accuracy=True to continue")
    return text


def places_of(names: Sequence[str], known: Sequence[str] | None, classes: int) -> list[int] | None:
    """Return the network's output index of each class name of a data set, or `None` if they are other classes.

    Names are compared first: with the network's, with ImageNet's, as numbers. Classes are matched by position only if there are as
    many and none of them has a name of the network's: a data set that shares some names would be matched wrongly.

    Args:
        names: class names of the data set.
        known: class names of the network, in the order of its outputs.
        classes: the number of outputs.
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
    """Return a network's class names: its own `class_names`, or those it was published with; `None` if unknown."""
    own = getattr(model, "class_names", None)
    if isinstance(own, Sequence) and not isinstance(own, str):
        if len(own) != classes:
            raise ModelError(f"class_names of the network must name its {classes} classes, got {len(own)}")
        return tuple(str(name) for name in own)
    known = _published(model, spec)
    return known if known is not None and len(known) == classes else None  # else it was tuned to other classes


def _published(model: nn.Module, spec: str) -> tuple[str, ...] | None:
    if embedded.owns(spec):
        return embedded.classes()
    kind, _, name = spec.partition(":")
    if kind == "torchvision":
        models = needed("torchvision.models", spec, "models", ModelError)
        entry = next(iter(models.get_model_weights(name.partition(":")[0])), None)
        return tuple(entry.meta["categories"]) if entry is not None and "categories" in entry.meta else None
    if kind == "timm" or hasattr(model, "pretrained_cfg"):
        data = needed("timm.data", type(model).__name__, "models", ModelError)
        subset = data.infer_imagenet_subset(model)
        info = None if subset is None else data.ImageNetInfo(subset)
        if info is None:
            return None
        # Folders of the usual thousand classes are known by their numbers anyway, and words are easier to read.
        named = info.label_descriptions() if info.num_classes() == len(imagenet_classes()) else info.label_names()
        return tuple(named)
    labels = getattr(getattr(model, "config", None), "id2label", None)
    if isinstance(labels, Mapping) and sorted(labels) == list(range(len(labels))):
        listed = tuple(str(labels[number]) for number in range(len(labels)))
        # Hugging Face's default names are LABEL_0, LABEL_1, ...
        return None if all(name == f"LABEL_{number}" for number, name in enumerate(listed)) else listed
    return None


def _plain(name: str) -> str:
    """Return a name for comparison: case, spaces, dashes and underscores do not count."""
    return " ".join(name.casefold().replace("_", " ").replace("-", " ").split())

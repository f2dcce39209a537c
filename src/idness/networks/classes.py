"""How the labels of a set and the classes of a network belong together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray
from torch import nn

from idness.core.errors import ModelError
from idness.core.extras import needed
from idness.core.wording import abridged
from idness.data import embedded
from idness.data.open import imagenet_classes
from idness.data.sets import in_order

Numbers = NDArray[np.int64]
ENOUGH = 16
"""Labelled images below which nothing is said of how many of them are classified rightly."""
COUNTED = 64
"""Images that count when right answers are held against luck, however many there are. An untrained network gives the images of a
class one and the same answer, so thousands of them say little more than a few dozen do."""
CHANCE = 0.01
"""Answers are better than chance if luck alone would make as many of them right less often than this."""
GAIN = 0.5
"""The share of the wrong answers that another order of the classes must explain before it is believed."""


def by_chance(right: int, count: int, classes: int) -> bool:
    """Say whether luck alone may make so many answers right: the one rule, wherever labels and answers are compared."""
    counted, share = min(count, COUNTED), 1 / max(classes, 2)
    found = round(counted * right / max(count, 1))
    # The tail of a binomial, without scipy.stats, which takes long to import.
    tail = (math.comb(counted, k) * share**k * (1 - share) ** (counted - k) for k in range(found, counted + 1))
    return sum(tail) > CHANCE


def places_of(names: Sequence[str], known: Sequence[str] | None, classes: int) -> list[int] | None:
    """Return the network's output index of each class name of a data set, or None if they are other classes.

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


@dataclass(frozen=True)
class Doubt:
    """Says in a line why a network is hardly what its user means.

    Args:
        text: the line.
        chance: whether its answers are right no more often than by chance, so that nothing made of them means anything.
    """

    text: str
    chance: bool

    def refuse(self) -> NoReturn:
        """Stop, with what to do for those who mean it."""
        raise ModelError(f"{self.text} any_accuracy=True goes on with it as it is")


def doubt(
    source: str, labels: Numbers, predicted: Numbers, classes: int, names: Sequence[str] | None = None
) -> Doubt | None:
    """Say what is wrong where a network hardly ever answers what the labels say; none where it does, or too few would tell."""
    right, count = int((labels == predicted).sum()), len(labels)
    if count < ENOUGH:
        return None
    found = f"{source}: {100 * right / count:.1f} % of {count:,} labelled images are classified rightly"
    order = None if names is None or len(names) != classes else better_order(names, labels, predicted)
    if order is not None:
        return Doubt(f"{found}, and {_told(*order)}; are the classes in the order of the network's outputs?", False)
    if not by_chance(right, count, classes):
        return None
    return Doubt(
        f"{found}, no more than by chance among {classes} classes; are these the network's trained weights, its"
        " classes in this order, and its preprocessing right?",
        True,
    )


def better_order(names: Sequence[str], labels: Numbers, predicted: Numbers) -> tuple[tuple[str, ...], float] | None:
    """Find another order of the classes that explains most of a network's wrong answers; none where there is none.

    It is found on every other image and must hold on the rest.

    Args:
        names: the names of the classes, in the order that the labels mean.
        labels: the place of each image's class in it.
        predicted: the network's answers.

    Returns:
        The names in the order of the network's outputs, and the share of right answers it gives.
    """
    if len(set(names)) < len(names):
        return None
    before = float((labels == predicted).mean())
    best: tuple[tuple[str, ...], float] | None = None
    for order, checked in _orders(names, labels, predicted):
        place = {name: number for number, name in enumerate(order)}
        meant = np.array([place[name] for name in names])[labels[checked]]
        share = float((meant == predicted[checked]).mean())
        if _convincing(share, before, len(names)) and (best is None or share > best[1]):
            best = order, share
    return best


def _convincing(share: float, before: float, classes: int) -> bool:
    # With few classes, luck finds an order more easily.
    return share > 0.4 + 0.8 / classes and share - before > GAIN * (1 - before)


def _orders(
    names: Sequence[str], labels: Numbers, predicted: Numbers
) -> Iterator[tuple[tuple[str, ...], NDArray[np.int64]]]:
    """Give orders worth trying, each with the images that it is to be tried on."""
    every = np.arange(len(labels))
    for simple in (tuple(sorted(names)), tuple(in_order(names))):
        if simple != tuple(names):
            yield simple, every
    # No order explains more of the checked images than if each answer stood for the class that it is most often given to.
    most = _confusion(labels[1::2], predicted[1::2], len(names)).max(axis=0).sum() / max(len(labels) // 2, 1)
    if not _convincing(float(most), float((labels == predicted).mean()), len(names)):
        return
    from scipy.optimize import linear_sum_assignment

    place = linear_sum_assignment(_confusion(labels[::2], predicted[::2], len(names)), maximize=True)[1]
    fitted = tuple(names[number] for number in np.argsort(place))
    if fitted != tuple(names):
        yield fitted, every[1::2]


def _confusion(labels: Numbers, predicted: Numbers, classes: int) -> Numbers:
    """Count the images of each class (row) by the network's answer (column)."""
    counts = np.zeros((classes, classes), np.int64)
    np.add.at(counts, (labels, predicted), 1)
    return counts


def reordered(source: str, names: Sequence[str], labels: Numbers, predicted: Numbers) -> tuple[tuple[str, ...], str]:
    """Give the classes of a set in the order of the network's outputs, and what to say of it; nothing where it is theirs."""
    found = better_order(names, labels, predicted)
    if found is None:
        return tuple(names), ""
    share = 100 * float((labels == predicted).mean())
    return found[0], (
        f"{source}: its classes are not in the order of the network's outputs: as they come ({abridged(names)})"
        f" {share:.1f} % of {len(labels):,} images are classified rightly, and {_told(*found)}; that order is taken;"
        " class_names of the network would say it for good"
    )


def class_names_for(model: nn.Module, spec: str, classes: int) -> tuple[str, ...] | None:
    """Find the names of a network's classes: its own `class_names`, or what is known of the classes that it was published with."""
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
        return _of_timm(model)
    labels = getattr(getattr(model, "config", None), "id2label", None)
    if isinstance(labels, Mapping) and sorted(labels) == list(range(len(labels))):
        listed = tuple(str(labels[number]) for number in range(len(labels)))
        # Without names of its own, Hugging Face calls them LABEL_0, LABEL_1, ...
        return None if all(name == f"LABEL_{number}" for number, name in enumerate(listed)) else listed
    return None


def _of_timm(model: nn.Module) -> tuple[str, ...] | None:
    """Name the classes of a timm network that was published with one of ImageNet's lists of classes."""
    data = needed("timm.data", type(model).__name__, "models", ModelError)
    subset = data.infer_imagenet_subset(model)
    if subset is None:
        return None
    info = data.ImageNetInfo(subset)
    # Of the usual thousand, folders are known by their numbers anyway, and words are better to read.
    named = info.label_descriptions() if info.num_classes() == len(imagenet_classes()) else info.label_names()
    return tuple(named)


def _plain(name: str) -> str:
    """Give a name as it is compared: case, spaces, dashes and underscores do not count."""
    return " ".join(name.casefold().replace("_", " ").replace("-", " ").split())


def _told(order: Sequence[str], share: float) -> str:
    return f"{100 * share:.1f} % if they are in the order {abridged(order)}"

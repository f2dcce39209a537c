"""Checks options and activations, and words their errors alike."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection
from dataclasses import field, fields, is_dataclass
from typing import TypeVar

import torch

from idness.core.errors import IdnessWarning, InputError, OptionError
from idness.core.types import Activations, Head

T = TypeVar("T")
CHECKED = 64
"""Of at least so many classes the logits are compared with the head's; a wrong head is wrong in all."""
SUITS_SIGNED = "gen, rmds, knn"
"""Methods that do not mind negative features; named in warnings."""


def percent(default: float) -> float:
    """Declare an option of a dataclass that is a percentage in [0, 100)."""
    return _declared(default, check_percent)


def positive(default: float) -> float:
    """Declare an option of a dataclass that is a finite number above 0."""
    return _declared(default, check_positive)


def nonnegative(default: float) -> float:
    """Declare an option of a dataclass that is a finite number of at least 0."""
    return _declared(default, check_nonnegative)


def count(default: int) -> int:
    """Declare an option of a dataclass that is a whole number of at least 1."""
    return _declared(default, check_count)


def one_of(default: str, *others: str) -> str:
    """Declare an option of a dataclass that is one of a few words, the first by default."""
    return _declared(default, lambda owner, name: check_choice(owner, name, (default, *others)))


def check_options(owner: object) -> None:
    """Check the options of a dataclass that it or a parent of it declares as one of these kinds."""
    for kind in filter(is_dataclass, type(owner).__mro__):
        for option in fields(kind):
            if "check" in option.metadata:
                option.metadata["check"](owner, option.name)


def check_percent(owner: object, name: str) -> None:
    """Check that an option is a percentage in [0, 100), and not a fraction by mistake."""
    value = _number(owner, name)
    if 0 < value < 1:
        raise OptionError(
            f"{_who(owner)}: {name} is in percent, in [0, 100); got {value:g}, which looks like a fraction; did you mean {value * 100:g}?"
        )
    if not 0 <= value < 100:
        raise OptionError(f"{_who(owner)}: {name} must be in [0, 100), got {value:g}")


def check_fraction(owner: object, name: str, value: float) -> None:
    """Check that an argument is strictly between 0 and 1."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1:
        raise OptionError(f"{_who(owner)}: {name} must be in (0, 1), got {value!r}")


def check_share(owner: object, name: str) -> None:
    """Check that an option is a share in [0, 1)."""
    value = _number(owner, name)
    if not 0 <= value < 1:
        raise OptionError(f"{_who(owner)}: {name} must be in [0, 1), got {value:g}")


def check_positive(owner: object, name: str) -> None:
    """Check that an option is a finite number above 0."""
    value = _number(owner, name)
    if not (math.isfinite(value) and value > 0):
        raise OptionError(f"{_who(owner)}: {name} must be above 0, got {value:g}")


def check_nonnegative(owner: object, name: str) -> None:
    """Check that an option is a finite number of at least 0."""
    value = _number(owner, name)
    if not 0 <= value < math.inf:
        raise OptionError(f"{_who(owner)}: {name} must be 0 or more, got {value:g}")


def check_count(owner: object, name: str) -> None:
    """Check that an option is a whole number of at least 1."""
    value = getattr(owner, name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise OptionError(f"{_who(owner)}: {name} must be a whole number of at least 1, got {value!r}")


def check_at_most_images(owner: object, name: str, images: int) -> None:
    """Check that an option counts no more neighbours or clusters than there are training images."""
    value = getattr(owner, name)
    if value > images:
        raise InputError(f"{_who(owner)}: {name} must be at most the number of training images ({images}), got {value}")


def check_choice(owner: object, name: str, choices: Collection[str]) -> None:
    """Check that an option is one of a few words."""
    value = getattr(owner, name)
    if value not in choices:
        raise OptionError(f"{_who(owner)}: {name} must be one of {', '.join(choices)}; got {value!r}")


def check_acts(owner: object, what: str, acts: Activations, head: Head) -> None:
    """Check that activations are finite, not empty, and as wide as the head."""
    if not isinstance(acts, Activations):
        raise InputError(
            f"{_who(owner)}: {what} must be Activations, got {type(acts).__name__}; wrap it as Activations(features, logits)"
        )
    if len(acts) == 0:
        raise InputError(f"{_who(owner)}: {what} must hold at least one image, got none")
    for name, value, width in (("features", acts.features, head.width), ("logits", acts.logits, head.classes)):
        if value.shape[1] != width:
            raise InputError(
                f"{_who(owner)}: {what} must have {width} {name} per image as the head has, got {value.shape[1]}; is it of another network?"
            )
        # One sum is the cheapest pass that NaN and Inf both survive; only if it is odd are rows looked at.
        if not math.isfinite(value.sum().item()):
            bad = (~torch.isfinite(value).all(dim=1)).nonzero().flatten()
            if len(bad):
                raise InputError(
                    f"{_who(owner)}: {what} must be finite, got NaN or Inf in the {name} of {len(bad)} of {len(value)} images"
                    f" (first at row {int(bad[0])}); drop those rows or check the images"
                )


def check_edited(owner: object, what: str, acts: Activations, head: Head) -> None:
    """Check that the activations of the changed images are there, finite and as wide as the head."""
    if acts.edited is None:
        raise InputError(
            f"{_who(owner)}: {what} must carry those of the changed images, got none; score images with a Guard or the benchmark,"
            " or take collect(network, images, edit_with=detector).acts"
        )
    check_acts(owner, f"{what} of the changed images", acts.edited, head)


def check_labels(owner: object, what: str, acts: Activations, classes: int) -> None:
    """Check that labels are there and within the head's classes."""
    if acts.labels is None:
        raise InputError(
            f"{_who(owner)}: {what} must have labels, got none; give Activations(features, logits, labels)"
        )
    low, high = int(acts.labels.min()), int(acts.labels.max())
    if low < 0 or high >= classes:
        raise InputError(f"{_who(owner)}: {what} labels must be in [0, {classes - 1}], got {low} to {high}")


def check_labelling(owner: object, head: Head, takes_labels: bool) -> None:
    """Check that a method that asks which one of the classes an image shows is not used where it may get several labels."""
    if head.multi_label and not takes_labels:
        raise InputError(
            f"{_who(owner)}: scores by which one of the classes an image shows, but the network gives each image any number of"
            " labels (multi-label); use ebo, mls, msp, react, scale or knn"
        )


def check_match(owner: object, what: str, acts: Activations, head: Head) -> None:
    """Check on a few rows, and on some of many classes, that the head makes these logits of these features."""
    some = slice(None, None, max(1, head.classes // CHECKED))
    logits, features = acts.logits[:4, some], acts.features[:4].to(head.weight.device)
    expected = torch.nn.functional.linear(features, head.weight[some], head.offset[some])
    error = float((expected - logits.to(expected.device)).abs().max())
    # Generous enough for networks that ran in bfloat16, far below what a wrong head gives.
    if error > 0.05 * (1.0 + float(logits.abs().max())):
        raise InputError(
            f"{_who(owner)}: {what} logits must be the head's for these features, got values off by {error:.3g}; is it another network's?"
        )


def warn_signed(owner: object, acts: Activations) -> None:
    """Warn when features that should be non-negative are not."""
    lowest = float(acts.features.min())
    if lowest < -1e-6:
        warnings.warn(
            f"{_who(owner)}: expects non-negative features, as a ReLU leaves them, got values down to {lowest:.3g};"
            f" its scores mean little here: use {SUITS_SIGNED} instead",
            IdnessWarning,
            stacklevel=4,
        )


def _declared(default: T, check: Callable[[object, str], None]) -> T:
    return field(default=default, metadata={"check": check})


def _who(owner: object) -> str:
    return owner if isinstance(owner, str) else type(owner).__name__


def _number(owner: object, name: str) -> float:
    value = getattr(owner, name)
    if not isinstance(value, int | float) or isinstance(value, bool) or math.isnan(value):
        raise OptionError(f"{_who(owner)}: {name} must be a number, got {value!r}")
    return float(value)

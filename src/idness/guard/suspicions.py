"""What speaks against the images that should calibrate: the network knows them, they serve twice, or it knows nothing of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

from idness.core.errors import InputError
from idness.data import ActivationsSet
from idness.data.duplicates import common
from idness.metrics import accuracy
from idness.networks.class_names import check_accuracy
from idness.networks.open import Network
from idness.networks.run_folder import trained_on, validation_accuracy

CAUTION = "caution: "
"""How a note begins that says why a guard may not keep its promise."""


def seen_before(ids: ActivationsSet, weights: str | Path | None) -> list[str]:
    """Notice images that the network was trained on: its run knows them, or it is right about them more often than in validation."""
    learned = trained_on(weights)
    assert ids.acts.hashes is not None
    shared = 0 if learned is None else common(ids.acts.hashes.numpy(), learned)
    if shared:
        return [
            f"{CAUTION}at least {shared:,} of the {len(ids.acts):,} images of {ids.name} are among those that the network was trained on,"
            " so that the guard will flag more ID images than it promises: calibrate on others"
        ]
    known = validation_accuracy(weights)
    if known is None or ids.acts.labels is None:
        return []
    share, count = accuracy(ids.acts.logits, ids.acts.labels), len(ids.acts)
    if share <= known + 3 * math.sqrt(known * (1 - known) / count) + 0.01:
        return []
    return [
        f"{CAUTION}the network is right about {100 * share:.1f} % of {ids.name}, and was about {100 * known:.1f} % of its validation"
        " images; if it was trained on them, the guard will flag more ID images than it promises: calibrate on others"
    ]


def check_apart(sets: Mapping[str, ActivationsSet | None], notes: list[str]) -> None:
    """Refuse images that serve twice: a detector knows those that it learned, and what is ID cannot be OOD. Note near copies."""
    given = {name: found for name, found in sets.items() if found is not None}
    for (first, one), (second, other) in combinations(given.items(), 2):
        shared = one.shared_with(other)
        if shared:
            raise InputError(
                f"{first}= and {second}= must have no image in common, got {shared:,} in both ({one.name}, {other.name});"
                " the guard would not keep its promise: leave them out of one"
            )
        alike = one.near_to(other)
        if alike:
            notes.append(
                f"{CAUTION}{alike:,} images of {one.name} ({first}) are nearly the same in {other.name} ({second}); if they are copies,"
                " the guard may not keep its promise: leave them out of one"
            )


def classified(found: ActivationsSet, network: Network, *, any_accuracy: bool) -> list[str]:
    """Say how many images the network classifies as their folders say; stop where that is chance, unless any accuracy will do."""
    source, acts = found.name, found.acts
    classes = acts.logits.shape[1]
    if acts.labels is None:
        return [f"{source}: its classes are not the network's {classes}; labels are not used"]
    share = accuracy(acts.logits, acts.labels)
    said = f"{source}: {len(acts):,} images, of which the network classifies {100 * share:.1f} % as their folder says"
    predicted = acts.logits.argmax(dim=1).numpy()
    wrong = check_accuracy(source, acts.labels.numpy(), predicted, classes, any_accuracy=any_accuracy)
    return [said, f"{CAUTION}{wrong}"] if wrong else [said]

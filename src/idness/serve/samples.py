"""A few embedded pictures to try a guard with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from idness.core.errors import StoreError
from idness.data import embedded
from idness.data.embedded import EmbeddedSet
from idness.data.preprocess import encoded


@dataclass(frozen=True)
class Sample:
    """Holds a picture to try, with what it shows and the part that it plays in the embedded benchmark."""

    title: str
    role: str
    png: bytes


ROLES = {"id_test": "id", "near": "near", "far": "far"}
"""The embedded test sets' roles, and what the page calls them."""
TRIED = 120
"""Images of each role of which the rates are told: enough for a rate within nine points."""


@cache
def samples() -> tuple[Sample, ...]:
    """Pick pictures from the embedded test sets: each ID class, then near and far ones; none where the data is absent."""
    found: list[Sample] = []
    try:
        for role, short in ROLES.items():
            for name in embedded.sets(role):
                found += _of(embedded.load(name), short)
    except StoreError:
        return ()
    return tuple(found)


def of_embedded_classes(class_names: Sequence[str] | None) -> bool:
    """Say whether a network has the embedded classes: only then is it known which of the pictures are OOD images."""
    return {sample.title for sample in samples() if sample.role == "id"} == set(class_names or ())


@cache
def trial() -> dict[str, list[NDArray[np.uint8]]]:
    """Take images of each role, evenly from its sets."""
    found: dict[str, list[NDArray[np.uint8]]] = {}
    for role, short in ROLES.items():
        names = embedded.sets(role)
        each = TRIED // len(names)
        for name in names:
            images = embedded.load(name).images
            found.setdefault(short, []).extend(images[:: len(images) // each][:each])
    return found


def _of(data: EmbeddedSet, role: str) -> list[Sample]:
    if role == "id" and data.labels is not None:
        # The third of each class: the first ones of CIFAR-10 are in every tutorial.
        rows = {label: int((data.labels == label).nonzero()[0][2]) for label in range(len(data.classes))}
        return [Sample(data.classes[label], role, encoded(data.images[row])[0]) for label, row in rows.items()]
    title = data.name.replace("-", " ").replace("_", " ")
    return [Sample(title, role, encoded(data.images[row])[0]) for row in (3, len(data) // 2)]

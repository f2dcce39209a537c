"""A few embedded pictures to try a guard with."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cache

from PIL import Image

from idness.core.errors import StoreError


@dataclass(frozen=True)
class Sample:
    """Holds a picture to try, with what it shows and the part that it plays in the embedded benchmark."""

    title: str
    role: str
    png: bytes


ROLES = {"id_test": "known", "near": "near", "far": "far"}


@cache
def samples() -> tuple[Sample, ...]:
    """Pick pictures from the embedded test sets: each known class, then near and far ones; none where the data is absent."""
    from idness.data import embedded

    found: list[Sample] = []
    try:
        for role, short in ROLES.items():
            for name in embedded.sets(role):
                found += _of(embedded.load(name), short)
    except StoreError:
        return ()
    return tuple(found)


def _of(data: object, role: str) -> list[Sample]:
    from idness.data.embedded import EmbeddedSet

    assert isinstance(data, EmbeddedSet)
    if role == "known" and data.labels is not None:
        # The third of each class: the first ones of CIFAR-10 are in every tutorial.
        rows = {label: int((data.labels == label).nonzero()[0][2]) for label in range(len(data.classes))}
        return [Sample(data.classes[label], role, _png(data, row)) for label, row in rows.items()]
    title = data.name.replace("-", " ").replace("_", " ")
    return [Sample(title, role, _png(data, row)) for row in (3, len(data) // 2)]


def _png(data: object, row: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(data.images[row]).save(buffer, "PNG")  # type: ignore[attr-defined]
    return buffer.getvalue()

"""Names of classes, in the order of a network's outputs: from a list, a text file, or known by one word."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from idness.core.errors import DataError

IMAGENET = "imagenet"
"""The word for the 1,000 classes of ImageNet-1K."""


@cache
def imagenet_classes() -> tuple[str, ...]:
    """Give the WordNet numbers of ImageNet-1K's classes in their usual order, as its folders are named."""
    return tuple(json.loads(Path(__file__).with_name("imagenet.json").read_text(encoding="utf-8")))


def read_classes(text: str, base: Path | None = None) -> tuple[str, ...]:
    """Read the names of classes: `imagenet`, a text file with one name a line, or names with commas between.

    Args:
        text: which.
        base: the folder at which relative paths begin.
    """
    if text == IMAGENET:
        return imagenet_classes()
    file = (base or Path()) / Path(text).expanduser()
    if file.is_file():
        try:
            names = [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"{file.name}: must be a text file with the name of a class on each line ({error})"
            ) from error
    else:
        names = [name.strip() for name in text.split(",") if name.strip()]
    if len(names) < 2:
        raise DataError(
            f"classes must be a text file with one name a line, names with commas between, or {IMAGENET!r}; got {text!r}"
        )
    return tuple(names)

"""Images: decoded safely, brought to what a network expects, and read from wherever they are.

Names are imported when first used: the embedded images can be read without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from idness.data.activations import ActivationsSet
    from idness.data.arrays import ArraySet, NpzSet
    from idness.data.decoding import FORMATS, MAX_PIXELS, SUFFIXES, decode
    from idness.data.preprocessing import Preprocessing, preprocessing_for
    from idness.data.reading import Batch, read_batches
    from idness.data.sets import FileSet, ImageSet, folder_set
    from idness.data.sources import open_set

__all__ = [
    "FORMATS",
    "MAX_PIXELS",
    "SUFFIXES",
    "ActivationsSet",
    "ArraySet",
    "Batch",
    "FileSet",
    "ImageSet",
    "NpzSet",
    "Preprocessing",
    "decode",
    "folder_set",
    "open_set",
    "preprocessing_for",
    "read_batches",
]

_HOMES = {
    "arrays": ("ArraySet", "NpzSet"),
    "decoding": ("FORMATS", "MAX_PIXELS", "SUFFIXES", "decode"),
    "preprocessing": ("Preprocessing", "preprocessing_for"),
    "reading": ("Batch", "read_batches"),
    "activations": ("ActivationsSet",),
    "sets": ("FileSet", "ImageSet", "folder_set"),
    "sources": ("open_set",),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"idness.data.{module}"), name)
    raise AttributeError(f"module 'idness.data' has no attribute {name!r}")

"""Images: decoded safely, preprocessed for a network, and read from many kinds of data sets."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from idness.data.batches import Batch, read_batches
from idness.data.decoding import decode
from idness.data.open import open_set
from idness.data.preprocess import Preprocessing, preprocessing_for
from idness.data.sets import ArraySet, FileSet, ImageSet, folder_set

if TYPE_CHECKING:
    from idness.data.activations import ActivationsFile, ActivationsSet

__all__ = [
    "ActivationsFile", "ActivationsSet", "ArraySet", "Batch", "FileSet", "ImageSet", "Preprocessing", "decode", "folder_set", "open_set",
    "preprocessing_for", "read_batches",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in __all__:  # those of activations need torch: the embedded images can be read without
        return getattr(importlib.import_module("idness.data.activations"), name)
    raise AttributeError(f"module 'idness.data' has no attribute {name!r}")

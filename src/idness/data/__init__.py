"""Images: decoded safely, preprocessed for a network, and read from many kinds of data sets.

Names are imported on first use: the embedded images can be read without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from idness.data.activations import ActivationsFile as ActivationsFile
    from idness.data.activations import ActivationsSet as ActivationsSet
    from idness.data.batches import Batch as Batch
    from idness.data.batches import read_batches as read_batches
    from idness.data.decoding import decode as decode
    from idness.data.npz import ArraySet as ArraySet
    from idness.data.open import open_set as open_set
    from idness.data.preprocess import Preprocessing as Preprocessing
    from idness.data.preprocess import preprocessing_for as preprocessing_for
    from idness.data.sets import FileSet as FileSet
    from idness.data.sets import ImageSet as ImageSet
    from idness.data.sets import folder_set as folder_set

_HOMES = {
    "ActivationsFile": "activations",
    "ActivationsSet": "activations",
    "ArraySet": "npz",
    "Batch": "batches",
    "FileSet": "sets",
    "ImageSet": "sets",
    "Preprocessing": "preprocess",
    "decode": "decoding",
    "folder_set": "sets",
    "open_set": "open",
    "preprocessing_for": "preprocess",
    "read_batches": "batches",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'idness.data' has no attribute {name!r}")
    return getattr(importlib.import_module(f"idness.data.{_HOMES[name]}"), name)

"""Images: decoded safely, brought to what a network expects, and read from wherever they are."""

from __future__ import annotations

from idness.data.arrays import ArraySet, NpzSet
from idness.data.decoding import FORMATS, MAX_PIXELS, SUFFIXES, decode
from idness.data.preprocessing import Preprocessing, preprocessing_for
from idness.data.reading import Batch, read_batches
from idness.data.sets import ActivationsSet, FileSet, ImageSet, folder_set
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

"""Images: decoded safely, preprocessed for a network, and read from many kinds of data sets."""

from idness.data.batches import Batch, read_batches
from idness.data.decoding import decode
from idness.data.open import open_set
from idness.data.preprocess import Preprocessing, preprocessing_for
from idness.data.sets import ArraySet, FileSet, ImageSet, folder_set

__all__ = [
    "ArraySet", "Batch", "FileSet", "ImageSet", "Preprocessing", "decode", "folder_set", "open_set", "preprocessing_for", "read_batches",
]  # fmt: skip

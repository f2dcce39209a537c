"""torchvision's data sets by name, downloaded by torchvision if asked."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from idness.core.errors import DataError, MissingError, unknown_name
from idness.core.extras import needed
from idness.data.npz import ArraySet
from idness.data.sets import FileSet, ImageSet, Picture

SETS = (
    "CIFAR10", "CIFAR100", "CLEVRClassification", "Caltech101", "Caltech256", "CelebA", "Country211", "DTD", "EMNIST", "EuroSAT",
    "FER2013", "FGVCAircraft", "FakeData", "FashionMNIST", "Flowers102", "Food101", "GTSRB", "INaturalist", "ImageFolder",
    "ImageNet", "Imagenette", "KMNIST", "LFWPeople", "MNIST", "Omniglot", "OxfordIIITPet", "PCAM", "Places365", "QMNIST",
    "RenderedSST2", "SBU", "SEMEION", "STL10", "SUN397", "SVHN", "StanfordCars", "USPS",
)  # fmt: skip
"""The sets of images that torchvision reads without unpickling, or, as CIFAR's, only files with the official checksums."""
UNPICKLING = ("LSUN", "LSUNClass")
"""Sets that unpickle a file in the working folder, whoever wrote it."""


class IndexedSet(ImageSet):
    """A data set that returns images by index only."""

    def __init__(self, dataset: Any, source: str, labels: Any, classes: Sequence[str]) -> None:
        super().__init__(source, labels, classes)
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def picture(self, index: int) -> Picture:
        try:
            image = self.dataset[index][0]
        except Exception as error:  # each data set fails in its own way
            raise DataError(f"{self.source}: image {index} cannot be read ({error})") from error
        if not isinstance(image, Image.Image):
            raise DataError(f"{self.source}: must give images, got {type(image).__name__}")
        return image.convert("RGB")


def torchvision_set(name: str, root: Path, table: Mapping[str, Any]) -> ImageSet:
    """Open a torchvision data set below `root`; `split` picks train or test, `options` and `download` go to its constructor."""
    cls = _class_of(name)
    options = dict(table.get("options", {}))
    takes = inspect.signature(cls).parameters
    split = table.get("split")
    if split is not None:
        if "train" in takes:
            options["train"] = split == "train"
        else:
            options["split"] = split
    if table.get("download") and "download" in takes:
        options["download"] = True
    source = f"torchvision:{cls.__name__}" + (f"/{split}" if split else "")
    try:
        dataset = cls(root, **options)
    except (RuntimeError, OSError, ValueError, TypeError) as error:
        remedy = "set download = true or " if "download" in takes and not table.get("download") else ""
        raise MissingError(
            f"{source}: cannot be opened ({' '.join(str(error).split())}); {remedy}put it where relative paths begin"
        ) from error
    return _wrapped(dataset, source)


def _class_of(name: str) -> Any:
    datasets = needed("torchvision.datasets", f"torchvision:{name}", "models", DataError)
    known = {key.lower(): key for key in SETS}
    if name.lower() in map(str.lower, UNPICKLING):
        raise DataError(f"torchvision:{name}: reads pickled files, which could run code; give its images as a folder")
    if name.lower() not in known:
        raise unknown_name("torchvision data set", name, known)
    return getattr(datasets, known[name.lower()])


def _wrapped(dataset: Any, source: str) -> ImageSet:
    classes = [str(name) for name in (getattr(dataset, "classes", ()) or ())]
    labels = _labels(dataset)
    data = getattr(dataset, "data", None)
    if data is not None and hasattr(data, "shape") and len(data) == len(dataset):
        return ArraySet(np.asarray(data), source, labels, classes)
    files = getattr(dataset, "_image_files", None) or [
        pair[0] for pair in getattr(dataset, "samples", None) or getattr(dataset, "_samples", None) or []
    ]
    if files and len(files) == len(dataset):
        base = Path(dataset.root)
        return FileSet(base, [str(Path(file).relative_to(base)) for file in files], source, labels, classes)
    return IndexedSet(dataset, source, labels, classes)


def _labels(dataset: Any) -> Any:
    for name in ("targets", "labels", "_labels"):
        values = getattr(dataset, name, None)
        if values is not None and len(values) == len(dataset):
            found = np.asarray(values)
            return found.astype(np.int64) if np.issubdtype(found.dtype, np.integer) and found.ndim == 1 else None
    return None

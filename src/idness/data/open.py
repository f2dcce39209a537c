"""Opens data sets from what a user names: paths, URLs, torchvision's sets, tables of a benchmark file, arguments of a command."""

from __future__ import annotations

import inspect
import os
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idness.core.errors import DataError, MissingError, needed, unknown_name
from idness.core.text import masked
from idness.data import embedded
from idness.data.decoding import SUFFIXES, decode_picture, to_rgb
from idness.data.packed import TABLES, NpzSet, TableSet, array_names, tar_set
from idness.data.sets import (
    SET_SUFFIXES,
    ArraySet,
    FileSet,
    ImageSet,
    Picture,
    View,
    channels_last,
    find_images,
    folder_set,
    select,
)
from idness.data.urls import exists, explained, first_line, is_url, located, name_of, suffix_of

if TYPE_CHECKING:
    from idness.data.activations import ActivationsFile
    from idness.data.urls import Place

SOME = 8
"""Items of a data set that show whether its tensors are normalised."""
OPTIONS = (
    "path", "kind", "images", "labels", "rows", "per_class", "sample", "root", "split", "dataset", "options", "download"
)  # fmt: skip
PREFIXES = ("embedded", "torchvision")
KINDS = ("folder", "list", "npz", "torchvision", "parquet", "webdataset", "activations", "embedded")
SUFFIX_KINDS = {
    ".npz": "npz",
    ".txt": "list",
    ".parquet": "parquet",
    ".tar": "webdataset",
    ".safetensors": "activations",
}
TORCHVISION = (
    "CIFAR10", "CIFAR100", "CLEVRClassification", "Caltech101", "Caltech256", "CelebA", "Country211", "DTD", "EMNIST", "EuroSAT",
    "FER2013", "FGVCAircraft", "FashionMNIST", "Flowers102", "Food101", "GTSRB", "INaturalist", "ImageFolder",
    "ImageNet", "Imagenette", "KMNIST", "LFWPeople", "MNIST", "Omniglot", "OxfordIIITPet", "PCAM", "Places365", "QMNIST",
    "RenderedSST2", "SBU", "SEMEION", "STL10", "SUN397", "SVHN", "StanfordCars", "USPS",
)  # fmt: skip
"""The sets of images that torchvision reads without unpickling, or, as CIFAR's, only files with the official checksums."""


def open_set(
    spec: str | Mapping[str, Any], root: Path | None = None, classes: Sequence[str] = ()
) -> ImageSet | ActivationsFile:
    """Open a set of images or activations.

    Args:
        spec: a path, a URL, `embedded:NAME`, `torchvision:NAME`, or a table with `path` (one, or several of which the first that
            exists is taken) and optionally `kind`, `images` and `labels` (names of arrays or columns), `rows`, `sample`, `root`, `split`.
        root: the folder that relative paths start at.
        classes: the names of the network's classes, for folders with one folder per class.
    """
    if not isinstance(spec, str | Mapping):
        raise DataError(f"a set is a path or a table with a path, got {spec!r}")
    table = {"path": spec} if isinstance(spec, str) else dict(spec)
    for key in table:
        if key not in OPTIONS:
            raise DataError(f"a set takes {', '.join(OPTIONS)}; got {key!r}")
    if table.get("kind", KINDS[0]) not in KINDS:
        raise DataError(f"kind must be one of {', '.join(KINDS)}; got {table['kind']!r}")
    base = Path() if root is None else root
    kind, place = _kind_and_place(table, base)
    if isinstance(place, str):
        if kind == "torchvision":
            return select(_torchvision_set(place, base, table), table)
        stored = embedded.activations(place)
        if stored is None:
            return select(embedded.open_embedded(place), table)
        kind, place = "activations", stored
    if kind == "activations":
        from idness.data.activations import ActivationsFile  # needs torch

        return ActivationsFile(_local(place))
    names = table.get("images"), table.get("labels")
    if kind == "parquet":
        return select(TableSet(place, *names, table.get("split")), table)
    if kind == "webdataset":
        return select(tar_set(place, classes, names[0]), table)
    if kind == "npz":
        return select(NpzSet(_local(place), *names, classes), table)
    if kind == "list":
        usual = base if isinstance(place, Path) and not is_url(table["path"]) else place.parent
        return select(_list_set(place, located(str(table["root"]), base) if "root" in table else usual), table)
    return select(folder_set(place, classes), table)


def open_argument(
    name: str,
    value: Any,
    classes: Sequence[str] = (),
    normalised: tuple[Sequence[float], Sequence[float]] | None = None,
) -> ImageSet | ActivationsFile:
    """Open the set that was passed as the argument `name`; errors name the argument.

    Args:
        name: the argument.
        value: a path, a URL, a name of `open_set`, an open set, or images as a program has them.
        classes: the names of the network's classes.
        normalised: mean and standard deviation with which tensors were normalised.
    """
    if isinstance(value, ImageSet):
        return value
    if not isinstance(value, str | os.PathLike):
        return object_set(name, value, normalised)
    place = str(value)
    if place.partition(":")[0] not in PREFIXES and not exists(located(place)):
        raise DataError(f"{name}={masked(place)!r} does not exist; give a folder of images or another set")
    return open_set(place, classes=classes)


def open_images(arguments: Iterable[str], column: str | None = None) -> ImageSet:
    """Open all that a user names as one set: files, folders, patterns, and sets such as tables, tar files and lists, also by URL.

    `column` is the column of tables, or the array of .npz files, that contains the images.
    """
    parts: list[tuple[ImageSet, str]] = []
    files = FileSet(Path(), [], "images")
    for text in arguments:
        place = Path(text).expanduser()
        is_set = is_url(text) or text.partition(":")[0] in PREFIXES or (place.is_dir() and kind_of(place) != "folder")
        for name in [text] if is_set else map(str, find_images([text])):
            if is_set or Path(name).suffix.lower() in SET_SUFFIXES:
                parts.append(named_set(name, column))
            elif parts and parts[-1][0] is files:
                files.items.append(name)
            else:
                files = FileSet(Path(), [name], "images")
                parts.append((files, ""))
    if len(parts) != 1:
        return View(parts)
    [(images, prefix)] = parts
    return View(parts, source=images.source) if prefix else images


def named_set(text: str, column: str | None = None) -> tuple[ImageSet, str]:
    """Open a set, and return it with the prefix of its images' names: where it is; `column` as for `open_images`."""
    images = open_set({"path": text if is_url(text) else str(Path(text).expanduser()), "images": column})
    if not isinstance(images, ImageSet):
        raise DataError(f"{masked(text)}: must contain images, got activations; give image files or an array of images")
    if isinstance(images, FileSet):
        place = masked(images.root)
        return images, "" if place == "." else f"{place.rstrip('/')}/"
    if text.partition(":")[0] in PREFIXES or text.endswith(".npz"):
        return images, f"{masked(text)}#"
    if isinstance(images, TableSet) and not located(text).is_dir():
        text = text.rpartition("/")[0]
    return images, f"{masked(text).rstrip('/')}/" if text else ""


def _local(place: Place) -> Path:
    if not isinstance(place, Path):
        raise DataError(f"{masked(place)}: must be a local file; by URL give a folder, list, Parquet or tar file")
    return place


def _kind_and_place(table: Mapping[str, Any], base: Path) -> tuple[str, Place | str]:
    """Return the kind of a set and its place, or its name if it is no file; of several places the first that exists is taken."""
    if "dataset" in table:
        return "torchvision", str(table["dataset"])
    places = table.get("path")
    listed = [places] if isinstance(places, str) else list(places or [])
    if not listed or not all(isinstance(place, str) and place for place in listed):
        raise DataError(f"a set needs a path, or several, got {places!r}")
    for text in listed:
        prefix, _, rest = text.partition(":")
        if prefix in PREFIXES and rest:
            return prefix, rest
        place = located(text, base)
        if exists(place):
            return table.get("kind") or kind_of(place, table.get("images") is not None), place
    raise MissingError(f"{' or '.join(map(masked, listed))} does not exist")


def kind_of(place: Place, images: bool = False) -> str:
    """Return the kind of a set by its place; `images`: whether an array of images was named."""
    suffix = suffix_of(place)
    if place.is_dir():
        found = ["parquet"] if any(any(place.glob(pattern)) for pattern in TABLES) else []
        found += ["webdataset"] if any(place.glob("*.tar")) else []
        if found and any(suffix_of(file) in SUFFIXES for file in place.iterdir()):
            found.append("folder")
        if len(found) > 1:
            raise DataError(
                f"{name_of(place)}: contains image files, tables or tar files side by side; name them one by one or set kind"
            )
        return found[0] if found else "folder"
    if suffix not in SUFFIX_KINDS:
        raise DataError(
            f"{name_of(place)}: must be a folder or end in {', '.join(SUFFIX_KINDS)}; or set kind to one of {', '.join(KINDS)}"
        )
    if suffix == ".npz" and isinstance(place, Path) and not images:
        try:
            return "activations" if "features" in array_names(place) else "npz"
        except (OSError, zipfile.BadZipFile):
            return "npz"  # opening it reports what is wrong
    return SUFFIX_KINDS[suffix]


def _list_set(path: Place, root: Place) -> FileSet:
    """Open an OpenOOD image list: one `path label` per line, paths or URLs below `root`; label -1 or none means unknown."""
    source = name_of(path)
    with explained(source, "is not an image list"):
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    items, labels = [], []
    for number, line in enumerate(lines, start=1):
        labelled = re.fullmatch(r"(.*\S)\s+(-?[0-9]{1,18})", line)
        name, label = labelled.groups() if labelled else (line, "-1")
        below = _below(name, root)
        if below is None:
            raise DataError(
                f"{source}: line {number} must name a file below the root, got {masked(name)!r}; move the file or set root"
            )
        items.append(below)
        labels.append(int(label))
    known = np.array(labels, dtype=np.int64)
    looked = (items[0], items[len(items) // 2], items[-1]) if items else ()
    if looked and not any((root / name).is_file() for name in looked):
        raise MissingError(
            f"{source}: its images are not below {name_of(root) or 'the root'} (looked for {items[0]}); set root"
        )
    return FileSet(root, items, source, known if len(known) and known.min() >= 0 else None)


def _below(name: str, root: Place) -> str | None:
    """Return the path of a file relative to the root that it must be below; `None` if it is not."""
    if is_url(name):
        full = str(located(name) if name.lower().startswith("file:") else name)
        start = f"{str(root.absolute()).rstrip('/')}/"
        if not full.startswith(start):
            return None
        name = full[len(start) :]
    # A server decodes `%2e%2e`; `x::file://` would be another file system.
    plain = name if isinstance(root, Path) else unquote(name)
    outside = Path(plain).is_absolute() or ".." in Path(plain).parts or "\0" in plain or "://" in plain
    return None if outside else name


class ObjectSet(ImageSet):
    """Images as a program has them: paths, bytes of files, PIL images, or arrays and tensors of pixels.

    Args:
        items: a list, or a data set that returns them by index; an item may also be a pair of image and label, or a record of columns.
        source: the name of the set in messages.
        labels: the class of each image, if known.
        classes: the names of the classes, if known.
        normalised: mean and standard deviation with which float tensors were normalised, if they were.
        prepared: whether items are float tensors, which have the size of the network's input.
    """

    def __init__(
        self,
        items: Any,
        source: str = "images",
        labels: Any = None,
        classes: Sequence[str] = (),
        normalised: tuple[Sequence[float], Sequence[float]] | None = None,
        prepared: bool = False,
    ) -> None:
        super().__init__(items, source, labels, classes)
        self.normalised, self.prepared = normalised, prepared

    def item(self, index: int) -> str:
        image = self.items[index] if isinstance(self.items, list | tuple) else None
        return str(image) if isinstance(image, str | os.PathLike) else str(index)

    def picture(self, index: int) -> Picture:
        with explained(self.source, f"image {index} cannot be read"):  # each data set fails in its own way
            image = _pair(self.items[index])[0]
            if isinstance(image, Image.Image):
                return to_rgb(str(index), image)
        if isinstance(image, str | os.PathLike):
            return decode_picture(Path(image))
        if isinstance(image, bytes):
            return decode_picture(image, name=str(index))
        pixels = np.asarray(image)
        if pixels.ndim not in (2, 3) or pixels.dtype.kind not in "uf":
            raise DataError(
                f"{self.source}: image {index} must be a path, bytes, a PIL image or an array (H, W), (H, W, 3) or (3, H, W), got"
                f" {type(image).__name__}" + (f" of shape {pixels.shape}" if pixels.ndim else "")
            )
        if pixels.dtype.kind == "f":
            if self.normalised is not None:
                mean, std = (np.reshape(numbers, (-1, 1, 1)) for numbers in self.normalised)
                pixels = pixels * std + mean
            if pixels.size and not (pixels.min() > -0.02 and pixels.max() < 1.02):
                raise DataError(
                    f"{self.source}: values of image {index} must be in [0, 1], got {pixels.min():.3g} to {pixels.max():.3g}; if it is"
                    " normalised, pass preprocessing= with its mean and std, or call guard(images)"
                )
            pixels = np.clip(np.rint(pixels * 255), 0, 255).astype(np.uint8)
        return channels_last(pixels)


def object_set(name: str, value: Any, normalised: tuple[Sequence[float], Sequence[float]] | None = None) -> ImageSet:
    """Return a list, array, data set, Hugging Face Dataset or DataLoader as a set of images, with labels if it has them."""
    value = value.dataset if type(value).__name__ == "DataLoader" else value
    if not hasattr(value, "__len__") or not hasattr(value, "__getitem__"):
        raise DataError(
            f"{name}= must be a folder, a list of images or a data set with a length, got {type(value).__name__}"
        )
    if getattr(value, "transform", value) is None:
        return _wrapped(value, name)
    items = [value[place] for place in range(min(len(value), SOME))]
    names = [str(each) for each in (getattr(value, "classes", ()) or ())]
    labels = _listed_labels(value)
    if items and isinstance(items[0], Mapping):
        key = next((key for key in ("label", "labels", "fine_label") if key in items[0]), None)
        rows = isinstance(value, list | tuple)
        labels = None if key is None else _labels([row[key] for row in value] if rows else value[key])
        names = getattr(getattr(value, "features", {}).get(key), "names", None) or names
    elif labels is None and items and _pair(items[0])[1] is not None:
        labels = _labels([_pair(value[place])[1] for place in range(len(value))])
    images = [np.asarray(image) for item in items if hasattr(image := _pair(item)[0], "shape")]
    floats = bool(images) and images[0].dtype.kind == "f"
    plain = floats and all(image.min() >= 0 and image.max() <= 1 for image in images)  # not normalised
    return ObjectSet(value, name, labels, names, None if plain or not floats else normalised, floats)


def _pair(item: Any) -> tuple[Any, Any]:
    """Return image and label of an item; the label is `None` if it has none, or is in another column."""
    if isinstance(item, Mapping):
        images = [value for value in item.values() if isinstance(value, Image.Image | bytes | np.ndarray)]
        return next((item[key] for key in ("image", "img") if key in item), images[0] if images else None), None
    if isinstance(item, tuple | list) and len(item) == 2 and np.ndim(item[1]) == 0:
        return item[0], item[1]
    if isinstance(item, tuple) and len(item) == 1:  # a TensorDataset without labels
        return item[0], None
    return item, None


def _listed_labels(dataset: Any) -> NDArray[np.int64] | None:
    """Return the labels that a data set lists, without reading its images; `None` if it lists none."""
    given = (getattr(dataset, name, None) for name in ("targets", "labels", "_labels"))
    return _labels(next((values for values in given if values is not None and len(values) == len(dataset)), None))


def _labels(values: Any) -> NDArray[np.int64] | None:
    found = np.asarray([] if values is None else values)
    known = found.ndim == 1 and np.issubdtype(found.dtype, np.integer) and found.min(initial=0) >= 0
    return found.astype(np.int64) if known else None  # below zero means unknown


def _torchvision_set(name: str, root: Path, table: Mapping[str, Any]) -> ImageSet:
    """Open a torchvision data set below `root`; `split` picks train or test, `options` and `download` go to its constructor."""
    known = {key.lower(): key for key in TORCHVISION}
    if name.lower() not in known:
        raise unknown_name("torchvision data set", name, known)
    cls = getattr(needed("torchvision.datasets", f"torchvision:{name}", "models", DataError), known[name.lower()])
    options, split = dict(table.get("options", {})), table.get("split")
    takes = inspect.signature(cls).parameters
    if split is not None:
        options |= {"train": split == "train"} if "train" in takes else {"split": split}
    if table.get("download") and "download" in takes:
        options["download"] = True
    source = f"torchvision:{cls.__name__}" + (f"/{split}" if split else "")
    try:
        dataset = cls(root, **options)
    except (RuntimeError, OSError, ValueError, TypeError) as error:
        remedy = "set download = true or " if "download" in takes and not table.get("download") else ""
        raise MissingError(
            f"{source}: cannot be opened ({first_line(error)}); {remedy}put it where relative paths begin"
        ) from error
    return _wrapped(dataset, source)


def _wrapped(dataset: Any, source: str) -> ImageSet:
    """Read a torchvision data set by its array or its files, if it has them."""
    classes = [str(name) for name in (getattr(dataset, "classes", ()) or ())]
    labels = _listed_labels(dataset)
    data = getattr(dataset, "data", None)
    if data is not None and hasattr(data, "shape") and len(data) == len(dataset):
        return ArraySet(np.asarray(data), source, labels, classes)
    samples = getattr(dataset, "samples", None) or getattr(dataset, "_samples", None) or []
    files = getattr(dataset, "_image_files", None) or [pair[0] for pair in samples]
    if files and len(files) == len(dataset):
        base = Path(dataset.root)
        return FileSet(base, [str(Path(file).relative_to(base)) for file in files], source, labels, classes)
    return ObjectSet(dataset, source, labels, classes)

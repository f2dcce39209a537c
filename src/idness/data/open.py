"""Opening of data sets: paths, URLs, torchvision data sets, tables of a benchmark file, and arguments of a command."""

from __future__ import annotations

import inspect
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np

from idness.core.errors import DataError, MissingError, needed, unknown_name
from idness.core.text import masked
from idness.data import embedded, sets
from idness.data.decoding import SUFFIXES
from idness.data.packed import TABLES, NpzSet, TableSet, tar_set
from idness.data.sets import ArraySet, FileSet, ImageSet
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
SUFFIX_KINDS = {
    ".npz": "npz",
    ".txt": "list",
    ".parquet": "parquet",
    ".tar": "webdataset",
    ".safetensors": "activations",
}
KINDS = ("folder", *SUFFIX_KINDS.values(), *PREFIXES)
TORCHVISION = (
    "CIFAR10", "CIFAR100", "CLEVRClassification", "Caltech101", "Caltech256", "CelebA", "Country211", "DTD", "EMNIST", "EuroSAT",
    "FER2013", "FGVCAircraft", "FashionMNIST", "Flowers102", "Food101", "GTSRB", "INaturalist", "ImageFolder",
    "ImageNet", "Imagenette", "KMNIST", "LFWPeople", "MNIST", "Omniglot", "OxfordIIITPet", "PCAM", "Places365", "QMNIST",
    "RenderedSST2", "SBU", "SEMEION", "STL10", "SUN397", "SVHN", "StanfordCars", "USPS",
)  # fmt: skip
"""The torchvision data sets read without unpickling or, like CIFAR, only from files with the official checksums."""


def open_set(
    spec: str | Mapping[str, Any], root: Path | None = None, classes: Sequence[str] = ()
) -> ImageSet | ActivationsFile:
    """Open a set of images or activations.

    Args:
        spec: a path, a URL, `embedded:NAME`, `torchvision:NAME`, or a table with `path` (one, or a list of which the first existing
            one is used) and optionally `kind`, `images` and `labels` (names of arrays or columns), `rows`, `sample`, `root`, `split`.
        root: the base folder of relative paths.
        classes: the names of the network's classes, for folders with one folder per class.
    """
    if not isinstance(spec, str | Mapping):
        raise DataError(f"a set must be a path or a table with a path, got {spec!r}")
    table = {"path": spec} if isinstance(spec, str) else dict(spec)
    for key in table:
        if key not in OPTIONS:
            raise DataError(f"a set has the options {', '.join(OPTIONS)}; got {key!r}")
    if table.get("kind", KINDS[0]) not in KINDS:
        raise DataError(f"kind must be one of {', '.join(KINDS)}; got {table['kind']!r}")
    base, names = root or Path(), (table.get("images"), table.get("labels"))
    kind, place = _kind_and_place(table, base)
    if kind == "embedded" and (stored := embedded.activations(str(place))) is not None:
        kind, place = "activations", stored
    if kind == "activations":
        from idness.data.activations import ActivationsFile  # needs torch

        return ActivationsFile(_local(place))
    openers: dict[str, Callable[[], ImageSet]] = {
        "folder": lambda: sets.folder_set(place, classes),
        "list": lambda: _list_set(place, table, base),
        "npz": lambda: NpzSet(_local(place), *names, classes),
        "parquet": lambda: TableSet(place, *names, table.get("split")),
        "webdataset": lambda: tar_set(place, classes, names[0]),
        "torchvision": lambda: _torchvision_set(str(place), base, table),
        "embedded": lambda: embedded.open_embedded(str(place)),
    }
    return sets.select(openers[kind](), table)


def open_argument(
    name: str,
    value: Any,
    classes: Sequence[str] = (),
    normalised: tuple[Sequence[float], Sequence[float]] | None = None,
) -> ImageSet | ActivationsFile:
    """Open the set passed as argument `name`: a path, a URL, another name for `open_set`, an open set, or images in memory.

    `classes` are those of the network; `normalised` is the mean and standard deviation with which tensors were normalised.
    """
    if isinstance(value, ImageSet):
        return value
    if not isinstance(value, str | os.PathLike):
        return object_set(name, value, normalised)
    place = str(value)
    if place.partition(":")[0] not in PREFIXES and not exists(located(place)):
        raise DataError(f"{name}={masked(place)!r} does not exist; pass a folder of images or another set")
    return open_set(place, classes=classes)


def open_images(arguments: Iterable[str], column: str | None = None) -> ImageSet:
    """Open all arguments as one set: files, folders, patterns, and sets such as tables, tar files and lists, also by URL.

    `column` is the column of tables, or the array of .npz files, that contains the images.
    """
    found: list[tuple[bool, str]] = []
    for text in arguments:
        place = Path(text).expanduser()
        if is_url(text) or text.partition(":")[0] in PREFIXES or (place.is_dir() and kind_of(place) != "folder"):
            found.append((True, text))
        else:
            found += [(path.suffix.lower() in SUFFIX_KINDS, str(path)) for path in sets.find_images([text])]
    parts: list[tuple[ImageSet, str]] = []
    for is_set, group in groupby(found, key=itemgetter(0)):
        names = [name for _, name in group]
        parts += [_named_set(name, column) for name in names] if is_set else [(FileSet(Path(), names, "images"), "")]
    return sets.View(parts, source=parts[0][0].source if len(parts) == 1 else "images")


def _named_set(text: str, column: str | None) -> tuple[ImageSet, str]:
    """Open a set, and return it with the prefix of its images' names, which is its location."""
    images = open_set({"path": text if is_url(text) else str(Path(text).expanduser()), "images": column})
    if not isinstance(images, ImageSet):
        raise DataError(f"{masked(text)}: must contain images, got activations; pass image files or an array of images")
    if isinstance(images, FileSet):
        text = "" if images.root == Path() else str(images.root)
    elif text.partition(":")[0] in PREFIXES or text.endswith(".npz"):
        return images, f"{masked(text)}#"
    elif isinstance(images, TableSet) and not located(text).is_dir():
        text = text.rpartition("/")[0]
    return images, f"{masked(text).rstrip('/')}/" if text else ""


def _local(place: Any) -> Path:
    if isinstance(place, Path):
        return place
    raise DataError(f"{masked(place)}: must be a local file; a URL must name a folder, list, Parquet or tar file")


def _kind_and_place(table: Mapping[str, Any], base: Path) -> tuple[str, Any]:
    """Return the kind of a set, and its location (the first existing one of several) or, if it is not a file, its name."""
    if "dataset" in table:
        return "torchvision", table["dataset"]
    places = table.get("path")
    listed = [places] if isinstance(places, str) else list(places or [])
    if not listed or not all(isinstance(place, str) and place for place in listed):
        raise DataError(f"path must be a path or a list of paths, got {places!r}")
    for text in listed:
        prefix, _, rest = text.partition(":")
        if prefix in PREFIXES and rest:
            return prefix, rest
        place = located(text, base)
        if exists(place):
            return table.get("kind") or kind_of(place, table.get("images") is not None), place
    raise MissingError(f"{' or '.join(map(masked, listed))} does not exist")


def kind_of(place: Place, images: bool = False) -> str:
    """Return the kind of the set at a location; `images` is whether an array of images was named."""
    suffix, name = suffix_of(place), name_of(place)
    if place.is_dir():
        found = ["parquet"] if any(any(place.glob(pattern)) for pattern in TABLES) else []
        found += ["webdataset"] if any(place.glob("*.tar")) else []
        if found and any(suffix_of(file) in SUFFIXES for file in place.iterdir()):
            found.append("folder")
        if len(found) > 1:
            raise DataError(f"{name}: contains image files, tables and tar files; pass each separately or set kind")
        return found[0] if found else "folder"
    if suffix not in SUFFIX_KINDS:
        raise DataError(f"{name}: must be a folder or end in {', '.join(SUFFIX_KINDS)}; or set kind")
    if suffix == ".npz" and isinstance(place, Path) and not images:
        with suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(place) as archive:  # reading it reports errors
            return "activations" if "features.npy" in archive.namelist() else "npz"
    return SUFFIX_KINDS[suffix]


def _list_set(path: Place, table: Mapping[str, Any], base: Path) -> FileSet:
    """Open an OpenOOD image list: one `path label` per line, relative to `root`; a label of -1, or none, means unknown."""
    source, root = name_of(path), base if isinstance(path, Path) else path.parent
    root = located(str(table["root"]), base) if "root" in table else root
    with explained(source, "is not an image list"):
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    items, labels = list[str](), list[int]()
    for number, line in enumerate(lines, start=1):
        labelled = re.fullmatch(r"(.*\S)\s+(-?[0-9]{1,18})", line)
        name, label = labelled.groups() if labelled else (line, "-1")
        # A server would decode `%2e%2e`; `x::file://` would name another file system.
        plain = name if isinstance(root, Path) else unquote(name)
        if Path(plain).is_absolute() or ".." in Path(plain).parts or "\0" in plain or "://" in plain:
            raise DataError(f"{source}: line {number} must be a path relative to the root, got {masked(name)!r}")
        items.append(name)
        labels.append(int(label))
    if items and not any((root / name).is_file() for name in (items[0], items[len(items) // 2], items[-1])):
        raise MissingError(f"{source}: {items[0]} is not inside {name_of(root) or 'the root'}; set root")
    return FileSet(root, items, source, sets.known_labels(labels))


def object_set(name: str, value: Any, normalised: tuple[Sequence[float], Sequence[float]] | None = None) -> ImageSet:
    """Return a list, array, data set, Hugging Face Dataset or DataLoader as a set of images, with its labels if it has any."""
    value = value.dataset if type(value).__name__ == "DataLoader" else value
    if not hasattr(value, "__len__") or not hasattr(value, "__getitem__"):
        wanted = "a folder, a list of images or a data set with a length"
        raise DataError(f"{name}= must be {wanted}, got {type(value).__name__}")
    names = [str(each) for each in (getattr(value, "classes", ()) or ())]
    listed = [found for key in ("targets", "labels", "_labels") if (found := getattr(value, key, None)) is not None]
    labels = sets.known_labels(next((found for found in listed if len(found) == len(value)), None))
    if getattr(value, "transform", value) is None:  # torchvision: files and arrays are faster than items
        if files := [Path(file) for file, _ in getattr(value, "samples", ())]:
            return FileSet(Path(value.root), [str(file.relative_to(value.root)) for file in files], name, labels, names)
        if hasattr(data := getattr(value, "data", None), "shape"):
            return ArraySet(np.asarray(data), name, labels, names)
    items = [value[place] for place in range(min(len(value), SOME))]
    if items and isinstance(items[0], Mapping):
        key = next((key for key in ("label", "labels", "fine_label") if key in items[0]), None)
        rows = isinstance(value, list | tuple)
        labels = None if key is None else sets.known_labels([row[key] for row in value] if rows else value[key])
        names = getattr(getattr(value, "features", {}).get(key), "names", None) or names
    elif labels is None and items and sets.image_and_label(items[0])[1] is not None:
        labels = sets.known_labels([sets.image_and_label(value[place])[1] for place in range(len(value))])
    images = [np.asarray(image) for item in items if hasattr(image := sets.image_and_label(item)[0], "shape")]
    floats = bool(images) and images[0].dtype.kind == "f"
    plain = floats and all(image.min() >= 0 and image.max() <= 1 for image in images)  # not normalised
    return ArraySet(value, name, labels, names, None if plain or not floats else normalised, floats)


def _torchvision_set(name: str, root: Path, table: Mapping[str, Any]) -> ImageSet:
    """Open a torchvision data set in `root`; `split` selects train or test, `options` and `download` go to its constructor."""
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
        raise MissingError(f"{source}: cannot be opened ({first_line(error)}); {remedy}check its folder") from error
    return object_set(source, dataset)

"""Opens data sets from what a user names: paths, URLs, tables of a benchmark file, arguments of a command."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from idness.core.errors import DataError, MissingError
from idness.core.wording import masked
from idness.data.activations import ActivationsFile
from idness.data.npz import ArraySet, NpzSet, array_names
from idness.data.sets import SET_SUFFIXES, FileSet, ImageSet, JoinedSet, find_images, folder_set, select
from idness.data.urls import UrlPath, is_url, local_path, located

OPTIONS = ("path", "kind", "images", "labels", "rows", "sample", "root", "split", "dataset", "options", "download")
PREFIXES = ("embedded", "torchvision")
KINDS = ("folder", "list", "npz", "torchvision", "parquet", "webdataset", "activations", "embedded")
IMAGENET = "imagenet"
"""The word for the 1,000 classes of ImageNet-1K."""


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
    kind, path = _located(table, base)
    if kind == "activations":
        return ActivationsFile(_local(path))
    return select(_images(kind, path, table, base, classes), table)


def open_argument(name: str, value: str | Path, classes: Sequence[str] = ()) -> ImageSet | ActivationsFile:
    """Open the set that was passed as the argument `name`; errors name the argument."""
    place = str(value)
    if place.partition(":")[0] not in PREFIXES and not located(place).exists():
        raise DataError(f"{name}={masked(place)!r} does not exist; give a folder of images or another set")
    return open_set(place, classes=classes)


def open_images(arguments: Iterable[str]) -> ImageSet:
    """Open all that a user names as one set: files, folders, patterns, and sets such as tables, tar files and lists, also by URL."""
    parts: list[tuple[ImageSet, str]] = []
    files = FileSet(Path(), [], "images")
    for text in arguments:
        place = Path(text).expanduser()
        is_set = is_url(text) or text.partition(":")[0] in PREFIXES
        is_set = is_set or (place.is_file() and place.suffix.lower() in SET_SUFFIXES)
        if is_set or (place.is_dir() and kind_of(place) != "folder"):
            parts.append(named_set(text))
            continue
        for path in find_images([text]):
            if path.suffix.lower() in SET_SUFFIXES:
                parts.append(named_set(str(path)))
            elif parts and parts[-1][0] is files:
                files.items.append(str(path))
            else:
                files = FileSet(Path(), [str(path)], "images")
                parts.append((files, ""))
    return parts[0][0] if len(parts) == 1 and not parts[0][1] else JoinedSet(parts)


def named_set(text: str) -> tuple[ImageSet, str]:
    """Open a set, and return it with the prefix of its images' names: where it is."""
    images = open_set(text if is_url(text) else str(Path(text).expanduser()))
    if isinstance(images, ActivationsFile):
        raise DataError(f"{masked(text)}: must hold images, got activations; give image files or an array of images")
    if isinstance(images, FileSet):
        place = str(images.root)
        return images, "" if place == "." else f"{place}/"
    if text.partition(":")[0] in PREFIXES or text.endswith(".npz") or images.blocks() is not None:
        return images, f"{masked(text)}#"
    return images, f"{masked(text if not text.endswith('.tar') else text.rpartition('/')[0] or '.')}/"


def _images(kind: str, path: str, table: Mapping[str, Any], base: Path, classes: Sequence[str]) -> ImageSet:
    if kind == "embedded":
        from idness.data import embedded

        found = embedded.load(path)
        return ArraySet(found.images, f"embedded:{path}", found.labels, found.classes)
    if kind == "torchvision":
        from idness.data.torchvision_sets import torchvision_set

        return torchvision_set(path, base, table)
    if kind == "parquet":
        from idness.data.parquet import TableSet

        return TableSet(located(path), table.get("images"), table.get("labels"), table.get("split"))
    if kind == "webdataset":
        from idness.data.shards import ShardSet

        return ShardSet(located(path), classes)
    if kind == "npz":
        return NpzSet(_local(path), table.get("images"), table.get("labels"), classes)
    if kind == "list":
        listed = located(path)
        usual = listed.parent if is_url(path) else base
        return list_set(listed, located(str(table["root"]), base) if "root" in table else usual)
    return folder_set(located(path), classes)


def _local(path: str) -> Path:
    found = located(path)
    if isinstance(found, UrlPath):
        raise DataError(f"{found}: must be a local file; by URL give a folder, list, Parquet or tar file")
    return found


def _located(table: Mapping[str, Any], base: Path) -> tuple[str, str]:
    """Return kind and place of a set; of several places the first that exists is taken."""
    if "dataset" in table:
        return "torchvision", str(table["dataset"])
    places = table.get("path")
    listed = [places] if isinstance(places, str) else list(places or [])
    if not listed or not all(isinstance(place, str) for place in listed):
        raise DataError(f"a set needs a path, or several, got {places!r}")
    for place in listed:
        prefix, _, rest = place.partition(":")
        if prefix in PREFIXES and rest:
            return prefix, rest
        found = located(place, base)
        if found.exists():
            kind = table.get("kind") or kind_of(found, "images" in table)
            return kind, place if is_url(place) else str(found)
    raise MissingError(f"{' or '.join(map(masked, listed))} does not exist")


def kind_of(path: Path | UrlPath, images: bool = False) -> str:
    """Return the kind of a set by its place; `images` says that an array of images was named."""
    if path.is_dir():
        tables = any(any(path.glob(pattern)) for pattern in ("*.parquet", "data/*.parquet", "*.arrow"))
        return "parquet" if tables else "webdataset" if any(path.glob("*.tar")) else "folder"
    kinds = {".npz": "npz", ".txt": "list", ".parquet": "parquet", ".arrow": "parquet", ".tar": "webdataset"}
    kinds |= {".safetensors": "activations"}
    if path.suffix.lower() not in kinds:
        raise DataError(
            f"{path.name}: must be a folder or end in {', '.join(kinds)}; or set kind to one of {', '.join(KINDS)}"
        )
    kind = kinds[path.suffix.lower()]
    if kind == "npz" and isinstance(path, Path) and not images:
        try:
            return "activations" if "features" in array_names(path) else "npz"
        except (OSError, zipfile.BadZipFile):
            return "npz"  # opening it says what is wrong
    return kind


def list_set(path: Path | UrlPath, root: Path | UrlPath) -> FileSet:
    """Open an OpenOOD image list: one `path label` per line, paths or URLs below `root`; label -1 or none means unknown."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path.name}: is not an image list ({error})") from error
    items, labels = [], []
    for number, line in enumerate(lines, start=1):
        name, _, label = line.rpartition(" ")
        if not name or not re.fullmatch("-?[0-9]{1,18}", label):
            name, label = line, "-1"
        below = _below(name, root)
        if below is None:
            raise DataError(
                f"{path.name}: line {number} must name a file below the root, got {masked(name)!r}; move the file or set root"
            )
        items.append(below)
        labels.append(int(label))
    known = np.array(labels, dtype=np.int64)
    looked = (items[0], items[len(items) // 2], items[-1]) if items else ()
    if looked and not any((root / name).is_file() for name in looked):
        raise MissingError(
            f"{path.name}: its images are not below {root.name or 'the root'} (looked for {items[0]}); set root"
        )
    return FileSet(root, items, path.name, known if len(known) and known.min() >= 0 else None)


def _below(name: str, root: Path | UrlPath) -> str | None:
    """Return the path of a file relative to the root that it must be below; None if it is not."""
    if is_url(name):
        local, start = local_path(name), f"{root.url if isinstance(root, UrlPath) else root.absolute()}/"
        full = name if isinstance(root, UrlPath) else str(local)
        if not full.startswith(start):
            return None
        name = full[len(start) :]
    outside = Path(name).is_absolute() or ".." in Path(name).parts or "\0" in name
    return None if outside else name


@cache
def imagenet_classes() -> tuple[str, ...]:
    """Return the WordNet ids of ImageNet-1K's classes in their usual order, as its folders are named."""
    return tuple(json.loads(Path(__file__).with_name("imagenet.json").read_text(encoding="utf-8")))


def read_classes(text: str, base: Path | None = None) -> tuple[str, ...]:
    """Return the class names in the order of a network's outputs.

    `text` is `imagenet`, a text file with one name per line (relative to `base`), or names separated by commas.
    """
    if text == IMAGENET:
        return imagenet_classes()
    file = (base or Path()) / Path(text).expanduser()
    if file.is_file():
        try:
            names = [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{file.name}: must be a text file with one class name per line ({error})") from error
    else:
        names = [name.strip() for name in text.split(",") if name.strip()]
    if len(names) < 2:
        raise DataError(
            f"classes must be a text file with one name per line, names separated by commas, or {IMAGENET!r}; got {text!r}"
        )
    return tuple(names)

"""Opens a set from what a benchmark file says of it."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from idness.core.errors import DataError, MissingError
from idness.core.wording import masked
from idness.data.activations import ActivationsSet
from idness.data.arrays import ArraySet, NpzSet, array_names
from idness.data.sets import FileSet, ImageSet, folder_set, select
from idness.data.urls import UrlPath, is_url, local_path, located

OPTIONS = ("path", "kind", "images", "labels", "rows", "sample", "root", "split", "dataset", "options", "download")
PREFIXES = ("embedded", "torchvision")
KINDS = ("folder", "list", "npz", "torchvision", "parquet", "webdataset", "activations", "embedded")


def open_set(
    spec: str | Mapping[str, Any], root: Path | None = None, classes: Sequence[str] = ()
) -> ImageSet | ActivationsSet:
    """Open a set of images or activations.

    Args:
        spec: a path, `embedded:NAME`, `torchvision:NAME`, or a table with `path` (one, or several of which the first that exists is
            taken), and where they matter `kind`, `images` and `labels` (names of arrays or columns), `rows`, `sample`, `root`, `split`.
        root: where relative paths begin.
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
        return ActivationsSet(_local(path))
    return select(_images(kind, path, table, base, classes), table)


def open_argument(name: str, value: str | Path, classes: Sequence[str] = ()) -> ImageSet | ActivationsSet:
    """Open the set that a caller gave as an argument of this name; where it is not there, the error says so of the argument."""
    place = str(value)
    if place.partition(":")[0] not in PREFIXES and not located(place).exists():
        raise DataError(f"{name}={masked(place)!r} does not exist; give a folder of images, or another set")
    return open_set(place, classes=classes)


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
        raise DataError(f"{found}: must be a file on this machine; by URL give a folder, list, Parquet or tar")
    return found


def _located(table: Mapping[str, Any], base: Path) -> tuple[str, str]:
    """Find kind and place of a set; the first of several places that exists is taken."""
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
    """Tell the kind of a set from its place; `images` says that an array of images was named."""
    if path.is_dir():
        tables = any(any(path.glob(pattern)) for pattern in ("*.parquet", "data/*.parquet", "*.arrow"))
        return "parquet" if tables else "webdataset" if any(path.glob("*.tar")) else "folder"
    kinds = {".npz": "npz", ".txt": "list", ".parquet": "parquet", ".arrow": "parquet", ".tar": "webdataset"}
    kinds |= {".safetensors": "activations"}
    if path.suffix.lower() not in kinds:
        raise DataError(
            f"{path.name}: must be a folder or end in {', '.join(kinds)}; or say kind = one of {', '.join(KINDS)}"
        )
    kind = kinds[path.suffix.lower()]
    return "activations" if kind == "npz" and isinstance(path, Path) and not images and _holds_features(path) else kind


def _holds_features(path: Path) -> bool:
    try:
        return "features" in array_names(path)
    except (OSError, zipfile.BadZipFile):
        return False  # said when its images are looked for


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


def list_set(path: Path | UrlPath, root: Path | UrlPath) -> FileSet:
    """Open an OpenOOD image list: one `path label` per line, paths or URLs below `root`; label -1 or none means unknown."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path.name}: is no image list ({error})") from error
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

"""The benchmarks that ship with the package: real images, verified against a manifest, no download.

Each is a folder next to this file, named after the benchmark: `NAME.toml` defines it, `manifest.json` lists its sets, and the weights
of its networks are `NETWORK.safetensors`. To add one, add the folder and an entry in `NETWORKS`.
"""

from __future__ import annotations

import io
import json
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idness.core.documents import Document
from idness.core.errors import DataError, unknown_name
from idness.data.decoding import decode
from idness.data.sets import ArraySet, known_labels, read_classes

HOME = Path(__file__).parent
NETWORKS = {"photos": ("mobilenet_v2",), "cifar6": ("base", "ish")}
"""The embedded benchmarks, each with its networks, the default one first; `cifar6:base` names a network."""
DEFAULT = "photos"
"""The benchmark that `idness bench` runs by default."""
NAME = "cifar6"
"""The benchmark whose sets need no prefix: `embedded:id_test` is `embedded:cifar6/id_test`."""
CIFAR6 = HOME / NAME
CIFAR10_LABELS = {"airplane": 0, "automobile": 1, "bird": 2, "deer": 4, "dog": 5, "truck": 9}
"""The classes of cifar6, and their labels in CIFAR-10."""


_DOCUMENT = Document(content=dict[str, Any], version=1, absent="reinstall idness", remedy="reinstall idness")


@dataclass(frozen=True)
class EmbeddedSet:
    """An embedded set of images: pixels (N, height, width, 3) uint8, labels that index `classes`, and the role in the benchmark."""

    name: str
    images: NDArray[np.uint8]
    labels: NDArray[np.int64] | None
    classes: tuple[str, ...]
    role: str = ""

    def __len__(self) -> int:
        return len(self.images)


def owns(spec: str) -> bool:
    """Whether a network is an embedded one, such as `cifar6:base`."""
    return spec.partition(":")[0] in NETWORKS


def id_test(spec: str) -> str:
    """Return the ID test images of an embedded network, as a name for `open_set`."""
    benchmark = spec.partition(":")[0]
    return "embedded:id_test" if benchmark == NAME else f"embedded:{benchmark}/id_test"


def definition(benchmark: str = NAME) -> Path:
    """Return the file that defines a benchmark."""
    return HOME / benchmark / f"{benchmark}.toml"


def classes(benchmark: str = NAME) -> tuple[str, ...]:
    """Return the names of the classes, in the order of the networks' outputs."""
    return read_classes(_defined(benchmark)["classes"], HOME / benchmark)


def preprocessing(benchmark: str = NAME) -> dict[str, Any]:
    """Return the preprocessing of the networks, for `Preprocessing.from_dict`; the default size is that of the ID test images."""
    side = manifest(root=HOME / benchmark)["sets"]["id_test"]["shape"][0]
    return {"resize": side, "crop": side, **_defined(benchmark)["preprocessing"]}


def normalisation(benchmark: str = NAME) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and std of each channel, for values in [0, 1]."""
    described = _defined(benchmark)["preprocessing"]
    return tuple(described["mean"]), tuple(described["std"])


def from_cifar10(archive: Path, split: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the images and labels of cifar6's classes from an .npz of CIFAR-10; `split` is train, val or test.

    Validation images are the last 84 (first two classes) or 83 training images of each class, in official order; all
    others are training images. Test images are the whole official test split of these classes.
    """
    if not archive.is_file():
        raise DataError(f"{archive}: does not exist; create it with `python tools/build_cifar6.py`")
    kind = "test" if split == "test" else "train"
    with np.load(archive, allow_pickle=False) as file:
        images, labels = file[f"{kind}_images"], file[f"{kind}_labels"].reshape(-1)
    chosen = []
    for position, label in enumerate(CIFAR10_LABELS.values()):
        indices = np.flatnonzero(labels == label)
        held = len(indices) - (84 if position < 2 else 83)
        chosen.append({"train": indices[:held], "val": indices[held:], "test": indices}[split])
    return images[np.concatenate(chosen)], np.concatenate([np.full(len(part), i) for i, part in enumerate(chosen)])


def sets(role: str | None = None, *, root: Path = CIFAR6) -> list[str]:
    """Return the names of a benchmark's sets, optionally of one role: id_train, id_val, id_test, near, far or ood_val."""
    return [name for name, entry in manifest(root=root)["sets"].items() if role in (None, entry["role"])]


def load(name: str, *, root: Path | None = None) -> EmbeddedSet:
    """Return one set in memory, with the sha256 of its files verified; `photos/NAME` is a set of the benchmark photos."""
    opened, entry = open_embedded(name, root=root), _entry(name, root)[2]
    images = np.stack([np.asarray(opened.picture(index)) for index in range(len(opened))])
    return EmbeddedSet(name.rpartition("/")[2], images, opened.labels, opened.classes, entry["role"])


def activations(name: str) -> Path | None:
    """Return the file of a set that is stored as activations; `None` for a set of images."""
    root, _, entry = _entry(name)
    file = next(iter(entry["files"]))
    return root / file if file.endswith(".safetensors") else None


def open_embedded(name: str, *, root: Path | None = None) -> ArraySet:
    """Open one set and verify the sha256 of its files; photographs are decoded on access."""
    root, inner, entry = _entry(name, root)
    if next(iter(entry["files"])).endswith(".safetensors"):
        raise DataError(f"embedded set {name!r}: contains activations, not images; open it with `open_set`")
    contents = [_DOCUMENT.bytes_of(root / file, digest) for file, digest in entry["files"].items()]
    [(listing, digest)] = manifest(root=root)["images"].items()
    labels = json.loads(_DOCUMENT.bytes_of(root / listing, digest))[inner]["labels"]
    if next(iter(entry["files"])).endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(contents[0])) as archive:
            images: Any = [archive.read(file) for file in archive.infolist()]
    else:  # sheets: images of one size, one below the other
        images = np.concatenate([np.asarray(decode(content)).reshape(-1, *entry["shape"]) for content in contents])
    return ArraySet(images, f"embedded:{name}", known_labels(labels), entry["classes"])


def manifest(*, root: Path = CIFAR6) -> dict[str, Any]:
    """Return a benchmark's manifest: roles, counts, classes, packages, and the sha256 of every file."""
    return _DOCUMENT.read(root / "manifest.json")


def _defined(benchmark: str) -> dict[str, Any]:
    return tomllib.loads(definition(benchmark).read_text(encoding="utf-8"))


def _entry(name: str, root: Path | None = None) -> tuple[Path, str, dict[str, Any]]:
    """Return the folder of a set, its name there, and its entry in the manifest."""
    benchmark, _, inner = name.rpartition("/")
    if benchmark and benchmark not in NETWORKS:
        raise unknown_name("embedded benchmark", benchmark, NETWORKS)
    root = root or HOME / (benchmark or NAME)
    known = manifest(root=root)["sets"]
    if inner not in known:
        raise unknown_name("embedded set", inner, known)
    return root, inner, known[inner]

"""The benchmarks that ship inside the package: real images, verified against their manifest, no download.

Each is a folder beside this file, named like the benchmark: `NAME.toml` defines it, `manifest.json` lists its sets, and the weights of
its networks are `NETWORK.safetensors`. To add one, add the folder and an entry of `NETWORKS`.
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
from PIL import Image

from idness.core.documents import Document, checksum
from idness.core.errors import DataError, unknown_name
from idness.data.decoding import decode
from idness.data.sets import ArraySet, ImageSet, read_classes

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


_DOCUMENT = Document(content=dict[str, Any], version=1, absent="install idness again", remedy="install idness again")


@dataclass(frozen=True)
class EmbeddedSet:
    """One set of images: uint8 (N, height, width, 3), labels that index `classes`, and its role in the benchmark."""

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


def default_model(benchmark: str = NAME) -> str:
    """Return the network that a benchmark uses by default."""
    return f"{benchmark}:{NETWORKS[benchmark][0]}"


def id_test(spec: str) -> str:
    """Return the ID test images of an embedded network, as `open_set` takes them."""
    benchmark = spec.partition(":")[0]
    return "embedded:id_test" if benchmark == NAME else f"embedded:{benchmark}/id_test"


def definition(benchmark: str = NAME) -> Path:
    """Return the file that defines a benchmark."""
    return HOME / benchmark / f"{benchmark}.toml"


def classes(benchmark: str = NAME) -> tuple[str, ...]:
    """Return the names of the classes, in the order of the networks' outputs."""
    return read_classes(_defined(benchmark)["classes"], HOME / benchmark)


def preprocessing(benchmark: str = NAME) -> dict[str, Any]:
    """Return the preprocessing of the networks, as `Preprocessing.from_dict` takes it: by default the size of the ID test images."""
    side = manifest(root=HOME / benchmark)["sets"]["id_test"]["shape"][0]
    return {"resize": side, "crop": side, **_defined(benchmark)["preprocessing"]}


def normalisation(benchmark: str = NAME) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and std of each colour, of values in [0, 1]."""
    described = _defined(benchmark)["preprocessing"]
    return tuple(described["mean"]), tuple(described["std"])


def from_cifar10(archive: Path, split: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the images of cifar6's classes in an .npz of CIFAR-10, and their labels; split is train, val or test.

    Validation is the last 84 (first two classes) or 83 training images of each class, in official order; training has
    all others. Test is the whole official test split of these classes.
    """
    if not archive.is_file():
        raise DataError(f"{archive}: no such file; make it with `python tools/build_cifar6.py`")
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
    """Return the names of a benchmark's sets, all or those of one role: id_train, id_val, id_test, near, far, ood_val."""
    roles = {name: entry["role"] for name, entry in manifest(root=root)["sets"].items()}
    if role is not None and role not in roles.values():
        raise unknown_name("role", role, set(roles.values()))
    return [name for name, found in roles.items() if role in (None, found)]


def load(name: str, *, root: Path | None = None) -> EmbeddedSet:
    """Read one set and verify the sha256 of its files; `photos/NAME` is a set of another benchmark than cifar6."""
    root, name = _located(name, root)
    entry = _entry(root, name)
    if next(iter(entry["files"])).endswith(".safetensors"):
        raise DataError(f"embedded set {name!r}: contains activations, not images; open it with `open_set`")
    contents = [_DOCUMENT.bytes_of(root / file, digest) for file, digest in entry["files"].items()]
    images = np.concatenate([_decoded(content).reshape(-1, *entry["shape"]) for content in contents])
    return EmbeddedSet(name, images, _labels(root, name), tuple(entry["classes"]), entry["role"])


def activations(name: str) -> Path | None:
    """Return the file of a set that is stored as activations; `None` if it has images."""
    root, name = _located(name, None)
    file = next(iter(_entry(root, name)["files"]))
    return root / file if file.endswith(".safetensors") else None


def open_embedded(name: str) -> ImageSet:
    """Open one set without decoding its photographs, which happens when they are read."""
    root, inner = _located(name, None)
    entry = _entry(root, inner)
    file, digest = next(iter(entry["files"].items()))
    if file.endswith(".zip"):
        files = _unzipped(_DOCUMENT.bytes_of(root / file, digest))
        return PhotoSet(files, f"embedded:{name}", _labels(root, inner), entry["classes"])
    found = load(name)
    return ArraySet(found.images, f"embedded:{name}", found.labels, found.classes)


class PhotoSet(ImageSet):
    """Image files in memory; items are pairs of name and content."""

    parallel = True

    def item(self, index: int) -> str:
        return str(self.items[index][0])

    def encoded(self, index: int) -> bytes | None:
        return bytes(self.items[index][1])


def fingerprint(name: str, *, root: Path | None = None) -> str:
    """Return a hash of one set's images, as the manifest has them."""
    root, name = _located(name, root)
    return checksum(_entry(root, name)["files"])


def manifest(*, root: Path = CIFAR6) -> dict[str, Any]:
    """Read a benchmark's manifest: roles, counts, classes, packages, and the sha256 of every file."""
    return _DOCUMENT.read(root / "manifest.json")


def _located(name: str, root: Path | None) -> tuple[Path, str]:
    """Return the folder of a set and its name there."""
    benchmark, _, rest = name.rpartition("/")
    if benchmark and benchmark not in NETWORKS:
        raise unknown_name("embedded benchmark", benchmark, NETWORKS)
    return root or HOME / (benchmark or NAME), rest


def _defined(benchmark: str) -> dict[str, Any]:
    return tomllib.loads(definition(benchmark).read_text(encoding="utf-8"))


def _entry(root: Path, name: str) -> dict[str, Any]:
    known: dict[str, dict[str, Any]] = manifest(root=root)["sets"]
    if name not in known:
        raise unknown_name("embedded set", name, known)
    return known[name]


def _labels(root: Path, name: str) -> NDArray[np.int64] | None:
    [(listing, digest)] = manifest(root=root)["images"].items()
    given = json.loads(_DOCUMENT.bytes_of(root / listing, digest))[name]["labels"]
    return None if given is None else np.array(given, np.int64)


def _decoded(content: bytes) -> NDArray[np.uint8]:
    """Decode an archive of image files, or a sheet: images of one size, one below the other."""
    if content.startswith(b"PK"):
        return np.stack([np.asarray(decode(data, name=name)) for name, data in _unzipped(content)])
    with Image.open(io.BytesIO(content), formats=["WEBP"]) as picture:
        return np.asarray(picture.convert("RGB"), np.uint8)


def _unzipped(archive: bytes) -> list[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        return [(entry.filename, opened.read(entry)) for entry in opened.infolist()]

"""The benchmark that ships inside the package: real images, checked against their manifest, no download.

Everything that knows its name, its networks, its classes and how its pictures are prepared is here.
"""

from __future__ import annotations

import io
import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image, WebPImagePlugin
from pydantic import with_config
from typing_extensions import TypedDict  # pydantic wants it before Python 3.12

from idness.core.documents import Document, checksum
from idness.core.errors import DataError, StoreError, unknown_name

if TYPE_CHECKING:
    from idness.data.preprocess import Preprocessing

CIFAR6 = Path(__file__).parent / "cifar6"
DEFINITION = CIFAR6 / "cifar6.toml"
"""The benchmark that these images make."""
NAME = "cifar6"
"""The benchmark's name, and what its networks' names begin with: `cifar6:base`."""
NETWORKS = ("base", "ish")
MODEL = f"{NAME}:base"
"""The network that is used where none is named."""
TEST_SET = "embedded:id_test"
CIFAR10_LABELS = {"airplane": 0, "automobile": 1, "bird": 2, "deer": 4, "dog": 5, "truck": 9}
"""The classes, and their labels in CIFAR-10."""


@with_config(extra="allow")
class Entry(TypedDict):
    """Describes one set in the manifest; there is more in it that nothing here needs."""

    role: str
    count: int
    classes: list[str]
    files: dict[str, str]


@with_config(extra="allow")
class Manifest(TypedDict):
    """Describes all sets, and names the file that lists their images with its sha256."""

    sets: dict[str, Entry]
    images: dict[str, str]


_DOCUMENT = Document(content=Manifest, version=1, absent="install idness again", remedy="install idness again")


@dataclass(frozen=True)
class EmbeddedSet:
    """Holds one set of images: uint8 (N, 32, 32, 3), labels that index `classes`, and its role in the benchmark."""

    name: str
    images: NDArray[np.uint8]
    labels: NDArray[np.int64] | None
    classes: tuple[str, ...]
    role: str = ""

    def __len__(self) -> int:
        return len(self.images)


def owns(spec: str) -> bool:
    """Say whether a network's name is one of the benchmark's, such as `cifar6:base`."""
    return spec.partition(":")[0] == NAME


def classes() -> tuple[str, ...]:
    """Give the names of the classes, in the order of the networks' outputs."""
    return tuple(CIFAR10_LABELS)


def normalisation() -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Read the mean and std of each colour from the benchmark's definition: CIFAR's, in [0, 1]."""
    described = tomllib.loads(DEFINITION.read_text(encoding="utf-8"))["preprocessing"]
    return tuple(described["mean"]), tuple(described["std"])


def preprocessing() -> Preprocessing:
    """Say how any picture becomes the input of the benchmark's networks."""
    from idness.data.preprocess import Preprocessing

    mean, std = normalisation()
    return Preprocessing(resize=32, crop=32, mean=mean, std=std)


def from_cifar10(archive: Path, split: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Take the images of these classes out of an .npz of CIFAR-10, and their labels; split is train, val or test.

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
    """List the sets by name, all or those of one role: id_train, id_val, id_test, near, far, ood_val."""
    entries = manifest(root=root)["sets"]
    roles = {name: entry["role"] for name, entry in entries.items()}
    if role is not None and role not in roles.values():
        raise unknown_name("role", role, set(roles.values()))
    return [name for name, found in roles.items() if role in (None, found)]


def load(name: str, *, root: Path = CIFAR6) -> EmbeddedSet:
    """Read one set and check every file of it by its sha256."""
    described = manifest(root=root)
    entry = _entry(described, name)
    sheets = [_sheet(_DOCUMENT.bytes_of(root / file, digest)) for file, digest in entry["files"].items()]
    try:
        [(listing, digest)] = described["images"].items()
        given = json.loads(_DOCUMENT.bytes_of(root / listing, digest))[name]["labels"]
        labels = None if given is None else np.array(given, np.int64)
        images = np.concatenate(sheets)
    except (KeyError, TypeError, ValueError) as error:
        raise _DOCUMENT.damaged(root / "manifest.json", f"embedded set {name!r}: {error}") from error
    count = entry["count"]
    if len(images) != count or (labels is not None and len(labels) != count):
        raise StoreError(f"embedded set {name!r}: must have {count} images, got {len(images)}; install idness again")
    return EmbeddedSet(name, images, labels, tuple(entry["classes"]), entry["role"])


def fingerprint(name: str, *, root: Path = CIFAR6) -> str:
    """Hash what the manifest says of one set's files, so that other pixels give another fingerprint."""
    return checksum(_entry(manifest(root=root), name)["files"])


def manifest(*, root: Path = CIFAR6) -> Manifest:
    """Read the manifest: roles, counts, classes, packages, and the sha256 of every file."""
    return _DOCUMENT.read(root / "manifest.json")


def _entry(described: Manifest, name: str) -> Entry:
    if name not in described["sets"]:
        raise unknown_name("embedded set", name, described["sets"])
    return described["sets"][name]


def _sheet(content: bytes) -> NDArray[np.uint8]:
    """Decode images that stand one below the other in a picture 32 pixels wide."""
    try:
        with Image.open(io.BytesIO(content), formats=[WebPImagePlugin.WebPImageFile.format]) as picture:
            return np.asarray(picture.convert("RGB"), np.uint8).reshape(-1, 32, 32, 3)
    except OSError as error:
        # The bytes are right, or bytes_of had told: it is Pillow that cannot.
        raise StoreError("this Pillow cannot read WebP; install Pillow's official wheel") from error

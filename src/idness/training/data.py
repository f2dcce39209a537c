"""Training images, in memory or streamed from disk: opening, order, and augmentation.

All randomness is a function of (seed, step) or (seed, epoch, image), never of the process that reads an image, so that results do not
depend on the number of workers, or on whether a run was killed and resumed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from idness.activations.store import FeatureStore
from idness.core.errors import DataError, needed
from idness.core.files import sha256_of
from idness.core.progress import Progress
from idness.core.text import abridged
from idness.data import ArraySet, ImageSet, Preprocessing, embedded, open_set, preprocessing_for
from idness.data.duplicates import exact_digests
from idness.data.preprocess import INTERPOLATIONS
from idness.data.sets import Picture, as_image
from idness.networks.architectures import SmallResNet
from idness.networks.head_search import noise
from idness.networks.load import INTERPOLATION, WEIGHTS, facts_of, load_for_training

View = Callable[[Tensor], Tensor]
"""The function of a training method that transforms one uint8 image (3, H, W) in a worker process."""
MIXED = 16
"""Number of blocks that are shuffled together, for sets that are read in blocks."""
SMALL = 64
"""Maximum side of images that are shifted by a few pixels and held in memory; larger ones are cropped at random, as on ImageNet."""
IN_MEMORY = 1 << 30
"""Maximum size in bytes of decoded images in memory."""
EVALUATED = 64
"""Batch size for evaluation."""
KNOWN = 10_000
"""Maximum number of training images whose hashes are stored, to recognise them among other images."""
USUAL = Preprocessing(resize=256, crop=224)
"""The default preprocessing of validation images, scaled to the size of the input, if the network does not define it."""
SHIFT = 4
"""Maximum shift of small images, in pixels."""


def mix(*numbers: int | str) -> int:
    """Return a 63-bit seed derived from seed, step and purpose."""
    text = "/".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


def seeded(*numbers: int | str) -> torch.Generator:
    """Return a generator that depends only on seed, step and purpose."""
    return torch.Generator().manual_seed(mix(*numbers))


@dataclass(frozen=True)
class Plan:
    """The images of each step; several processes share the images that a single one would take.

    `blocks` is where the blocks of a set that is read in blocks start, and where the last one ends.
    """

    images: int
    batch_size: int
    accumulate: int = 1
    seed: int = 0
    rank: int = 0
    world: int = 1
    blocks: Sequence[int] | None = None

    @property
    def per_step(self) -> int:
        """The number of images per step, over all processes."""
        return self.batch_size * self.accumulate * self.world

    @property
    def steps_per_epoch(self) -> int:
        """The number of full steps per epoch."""
        return self.images // self.per_step

    def order(self, epoch: int) -> Tensor:
        """Return the order of the images in one epoch."""
        generator = seeded(self.seed, "order", epoch)
        if self.blocks is None:
            return torch.randperm(self.images, generator=generator)
        ranges = [torch.arange(*pair) for pair in zip(self.blocks, self.blocks[1:], strict=False)]
        shuffled = [ranges[place] for place in torch.randperm(len(ranges), generator=generator).tolist()]
        windows = [torch.cat(shuffled[start : start + MIXED]) for start in range(0, len(shuffled), MIXED)]
        return torch.cat([window[torch.randperm(len(window), generator=generator)] for window in windows])

    def steps(self, first: int, last: int) -> Iterator[tuple[int, int, Tensor]]:
        """Yield number, epoch and images (of all processes) of the steps from `first` to before `last`."""
        order, known = torch.empty(0), -1
        for step in range(first, last):
            epoch, position = divmod(step, self.steps_per_epoch)
            if epoch != known:
                order, known = self.order(epoch), epoch
            yield step, epoch, order[position * self.per_step : (position + 1) * self.per_step]

    def shares(self) -> list[slice]:
        """Return this process's share of a step's images, one slice per batch."""
        every = self.world * self.accumulate
        return [slice(part * self.world + self.rank, None, every) for part in range(self.accumulate)]


@dataclass(frozen=True)
class TrainingSet:
    """Training images in memory.

    Args:
        images: pixels (N, H, W, 3), uint8.
        labels: the class of each image (N,).
        classes: the names of the classes.
        hashes: hashes of some images' pixels before they were resized.
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    hashes: NDArray[np.uint8] | None = field(default=None, repr=False)
    blocks: ClassVar[None] = None

    def __post_init__(self) -> None:
        images, labels, most = self.images, self.labels, len(self.classes) - 1
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[3] != 3 or not len(images):
            given = f"{images.dtype} {tuple(images.shape)}"
            raise DataError(f"images must be uint8 (N, H, W, 3) with N at least 1, got {given}")
        if labels.shape != images.shape[:1] or not 0 <= int(labels.min()) <= int(labels.max()) <= most:
            raise DataError(f"labels must be whole numbers from 0 to {most}, one per image; got {labels}")

    def __len__(self) -> int:
        return len(self.images)

    @property
    def how(self) -> Preprocessing:
        """The preprocessing that yields images of this size, without mean and std."""
        height, width = self.images.shape[1:3]
        return Preprocessing(resize=(height, width), interpolation=INTERPOLATION)

    @property
    def _arrays(self) -> ArraySet:
        return ArraySet(self.images.numpy(), "training images", self.labels.numpy(), self.classes)

    def fingerprint(self) -> str:
        """Return a hash of images, labels and class names."""
        arrays = (np.ascontiguousarray(tensor.numpy()).data for tensor in (self.images, self.labels))
        return sha256_of(("\0".join(self.classes), *arrays))

    def digests(self) -> NDArray[np.uint8]:
        """Return the hashes of some images' pixels before they were resized."""
        return exact_digests(self._arrays, KNOWN) if self.hashes is None else self.hashes

    def evaluated(self, places: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches of images, uint8 (N, 3, H, W), and their labels."""
        for start in range(0, len(places), EVALUATED):
            part = torch.as_tensor(places[start : start + EVALUATED])
            yield self.images[part].permute(0, 3, 1, 2), self.labels[part]

    def batches(
        self, plan: Plan, first: int, last: int, crops: str = "auto", view: View | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this process's batches from step `first` to before `last`, without augmentation if `crops` is empty.

        Shifts are drawn for a whole step and divided between processes; resized crops are drawn for each image, as for streamed images.
        """
        crops = crops_for(crops, self.how.size)
        if crops == "resized":
            yield from StreamedSet(self._arrays, self.how).batches(plan, first, last, crops, view)
            return
        for step, _, chosen in plan.steps(first, last):
            images, labels = self.images[chosen], self.labels[chosen]
            if crops:
                images = crop_flip(images, seeded(plan.seed, "augment", step))
            for mine in plan.shares():
                # (N, H, W, 3) viewed as (N, 3, H, W) is channels_last.
                yield images[mine].permute(0, 3, 1, 2), labels[mine]


@dataclass(frozen=True, eq=False)
class StreamedSet:
    """Training images that worker processes read during training; memory use does not grow with their number.

    Args:
        images: labelled images of any sizes; classes without names are numbered.
        how: the preprocessing of validation images: resize and centre crop to one size; its mean and std are not applied here.
        workers: the number of worker processes; with 0, the training process reads images itself.
    """

    images: ImageSet
    how: Preprocessing
    workers: int = 0

    def __post_init__(self) -> None:
        if self.how.size is None:
            raise DataError("StreamedSet: how= must resize images to one size; set crop, or height and width")
        self.images.hold = MIXED
        _name_classes(self.images)

    def __len__(self) -> int:
        return len(self.images)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self.images.classes

    @property
    def blocks(self) -> Sequence[int] | None:
        """Where the blocks that are best read as a whole start; `None` if any order is equally fast."""
        return self.images.blocks()

    def fingerprint(self) -> str:
        """Return a hash of the images' content and the class names; unchanged files are not read again."""
        return sha256_of(("\0".join(self.classes), self.images.fingerprint(FeatureStore().stamps)))

    def digests(self) -> NDArray[np.uint8]:
        """Return the hashes of the pixels of some images, as stored in their files."""
        return exact_digests(self.images, KNOWN)

    def evaluated(self, places: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches of preprocessed images, uint8 (N, 3, H, W), and their labels."""
        batches = (places[start : start + EVALUATED] for start in range(0, len(places), EVALUATED))
        requests = ([(0, place) for place in batch] for batch in batches)
        return self._load(requests, _Samples(self.images, self.how))

    def batches(
        self, plan: Plan, first: int, last: int, crops: str = "auto", view: View | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this process's batches from step `first` to before `last`: uint8 (N, 3, H, W), or the results of `view`."""
        requests = (
            [(epoch, place) for place in chosen[share].tolist()]
            for _, epoch, chosen in plan.steps(first, last)
            for share in plan.shares()
        )
        crops = crops_for(crops, self.how.size)
        return self._load(requests, _Samples(self.images, self.how, crops, view, plan.seed))

    def _load(self, requests: Any, samples: _Samples) -> Iterator[tuple[Tensor, Tensor]]:
        loader: Any = DataLoader(
            samples,
            batch_sampler=requests,
            num_workers=self.workers,
            pin_memory=torch.cuda.is_available(),
            generator=torch.Generator(),  # so that the global random state is not used
        )
        try:
            yield from map(tuple, loader)
        except DataError as error:  # that of a worker is preceded by a traceback
            raise DataError(str(error).strip().rpartition("DataError: ")[2]) from None


Images = TrainingSet | StreamedSet


class _Samples(Dataset[tuple[Tensor, int]]):
    """Single images, preprocessed or, with their own random numbers, augmented; `crops` is shift, resized or empty."""

    def __init__(
        self, images: ImageSet, how: Preprocessing, crops: str = "", view: View | None = None, seed: int = 0
    ) -> None:
        self.images, self.how, self.crops, self.seed = images, how, crops, seed
        self.labels = images.labels  # a set is sent to worker processes without labels
        self.steps: list[View] = [] if view is None else [view]
        if crops:
            v2 = needed("torchvision.transforms.v2", "training", "train")
            known = how.interpolation in ("bilinear", "bicubic", "nearest")
            mode = v2.InterpolationMode(how.interpolation if known else "bilinear")
            shift = v2.RandomCrop(list(how.size or ()), padding=SHIFT, padding_mode="reflect")
            resized = v2.RandomResizedCrop(list(how.size or ()), interpolation=mode, antialias=True)
            self.steps = [shift if crops == "shift" else resized, v2.RandomHorizontalFlip(), *self.steps]

    def __getitem__(self, request: tuple[int, int]) -> tuple[Tensor, int]:
        epoch, place = request
        picture = _picture(self.images, place)
        # A shift is in pixels of the network's input; a resized crop is taken from the whole image.
        pixels = np.array(picture if self.crops == "resized" else self.how.pixels(picture))
        image = torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(mix(self.seed, "augment", epoch, place))
            for step in self.steps:
                image = step(image)
        assert self.labels is not None
        return image, int(self.labels[place])


def _picture(images: ImageSet, place: int) -> Picture:
    """Return an image; errors also name the folder of its file."""
    try:
        return images.picture(place)
    except DataError as error:
        named = Path(images.item(place)).parent / str(error)
        raise DataError(f"{images.source}: {named}; repair or remove this image") from error


def crops_for(crops: str, size: tuple[int, int] | None) -> str:
    """Return the kind of crops, resolving `auto`: `shift` for sides up to 64 pixels, else `resized`."""
    if crops != "auto":
        return crops
    return "shift" if size is None or min(size) <= SMALL else "resized"


def crop_flip(images: Tensor, generator: torch.Generator, pad: int = SHIFT) -> Tensor:
    """Return images shifted by up to `pad` pixels, with reflected borders, and mirrored with probability 1/2.

    Images are uint8 (N, H, W, 3). Random numbers come only from `generator`, in one order for the whole batch.
    """
    count, height, width, _ = images.shape
    top, left = torch.randint(0, 2 * pad + 1, (2, count, 1), generator=generator)
    mirrored = torch.rand(count, 1, generator=generator) < 0.5
    rows = top + torch.arange(height)
    columns = left + torch.arange(width)
    columns = torch.where(mirrored, columns.flip(1), columns)
    # F.pad reflects only the last dimensions, so (N, H, W, 3) is padded as (N, 3, H, W).
    padded = F.pad(images.permute(0, 3, 1, 2), (pad, pad, pad, pad), mode="reflect").permute(0, 2, 3, 1)
    index = torch.arange(count)[:, None, None]
    return padded[index, rows[:, :, None], columns[:, None, :]]


def _held(images: ImageSet, size: tuple[int, int] | None, report: Progress) -> TrainingSet:
    """Read all images of a set into memory, resized if `size` (height, width) is given."""
    report.note(f"{images.source}: reading {len(images):,} images into memory")
    report.phase("reading images", len(images))
    arrays = list[NDArray[np.uint8]]()
    for place in range(len(images)):
        picture = _picture(images, place)
        array = np.asarray(picture, dtype=np.uint8)
        if size is not None and array.shape[:2] != size:
            resized = as_image(picture).resize(size[::-1], INTERPOLATIONS[INTERPOLATION], reducing_gap=3.0)
            array = np.asarray(resized)
        arrays.append(array)
        report.advance(1)
    sizes = sorted({(array.shape[1], array.shape[0]) for array in arrays})
    if len(sizes) > 1:
        listed = abridged([f"{width} x {height}" for width, height in sizes])
        raise DataError(f"{images.source}: images have {len(sizes)} sizes ({listed}); set size= to resize them")
    assert images.labels is not None
    held, labels = torch.from_numpy(np.stack(arrays)), torch.from_numpy(images.labels)
    return TrainingSet(held, labels, images.classes, exact_digests(images, KNOWN))


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
    progress: Progress | None = None,
) -> tuple[nn.Module, Images, Images | None]:
    """Open the images and the network of a training run, and the validation images if any.

    Images are streamed if `workers` is given, if a side exceeds 64 pixels, or if they would take more than a gigabyte; otherwise they
    are held in memory.

    Args:
        data: a folder with one subfolder per class, an image list (.txt), arrays (.npz), Parquet files, WebDataset shards (.tar),
            or `cifar6`.
        arch: the name of the network, as in `idness.networks.load.load_for_training`.
        val: validation images, to measure accuracy on, in any of the forms of `data`.
        root: the base folder of the paths in an image list; by default the folder of the list.
        init: weights to start from, as in `idness.networks.load.load_for_training`.
        size: side of the network's input in pixels; by default the network's own.
        crops: shift, resized or auto.
        workers: number of worker processes for streamed images; by default one per core, at most 8.
        seed: random seed of the initial weights.
        archive: CIFAR-10 as .npz, for `cifar6`.
        progress: progress callback.
    """
    listed = _listed(data, root, archive)
    val = val or (data if data == embedded.NAME else "")
    others = _listed(val, root, archive, listed.classes) if val else None
    height, width = np.asarray(_picture(listed, 0)).shape[:2]
    given = None if size is None else (size, size)
    example = None if arch.startswith(("torchvision:", "timm:")) else noise((3, *(given or (height, width))))
    model = load_for_training(arch, len(listed.classes), init, seed, example=example)
    own = _own_preprocessing(model, arch, init)
    if own is not None:
        model.preprocessing = own  # type: ignore[assignment]  # where `finetune` finds mean and std
        given = given or own.size
    final = given or (height, width)
    if workers is None and max(final) <= SMALL and len(listed) * final[0] * final[1] * 3 <= IN_MEMORY:
        report = progress or Progress()
        return model, _held(listed, given, report), _held(others, given, report) if others else None
    how = _evaluation(own, final, crops)
    count = min(8, os.cpu_count() or 1) if workers is None else workers
    return model, StreamedSet(listed, how, count), StreamedSet(others, how, count) if others else None


def _listed(data: str, root: str | Path | None, archive: str | Path = "", classes: tuple[str, ...] = ()) -> ImageSet:
    """Open labelled images without reading any; for validation images, `classes` are those of the training images."""
    if data == embedded.NAME:
        images, labels = embedded.from_cifar10(Path(archive), "val" if classes else "train")
        return ArraySet(images, data, labels, embedded.classes())
    place = Path(data).expanduser()
    if not place.exists():
        raise DataError(f"{data} does not exist; pass a folder with one subfolder of images per class, or another set")
    table = {"path": str(place.absolute())}
    if place.suffix == ".txt":
        table["root"] = str(Path(root or place.parent).absolute())
    found = open_set(table, None, classes)
    if not isinstance(found, ImageSet):
        raise DataError(f"{data}: contains activations; training needs images")
    if place.is_dir() and found.blocks() is None and not classes:
        folders = {entry.name for entry in place.iterdir() if entry.is_dir() and not entry.name.startswith(".")}
        if empty := sorted(folders - set(found.classes)):
            raise DataError(f"{data}: no images in {abridged(empty)}; add some or remove the folder")
    found.classes = classes or found.classes
    _name_classes(found)
    return found


def _name_classes(images: ImageSet) -> None:
    """Number classes without names, and check that there are labels of at least two classes."""
    if images.labels is None:
        raise DataError(f"{images.source}: training needs the class of each image; use one folder per class")
    most = int(images.labels.max(initial=-1))
    images.classes = images.classes or tuple(str(number) for number in range(most + 1))
    if most >= len(images.classes):
        raise DataError(f"{images.source}: labels must be from 0 to {len(images.classes) - 1}, got {most}")
    if len(images.classes) < 2:
        raise DataError(f"{images.source}: needs images of at least 2 classes, got {len(images.classes)}")


def _own_preprocessing(model: nn.Module, arch: str, init: str) -> Preprocessing | None:
    """Return the preprocessing that the weights or the network define; `None` if the network accepts any size."""
    stored = facts_of(Path(init) / WEIGHTS if init and Path(init).is_dir() else init)[2]
    if stored is not None or isinstance(model, SmallResNet):
        return stored
    exact_weights = init.startswith(("torchvision:", "timm:"))
    pretrained = exact_weights or init == "pretrained"
    return preprocessing_for(model, init if exact_weights else arch, None if pretrained else "none")


def _evaluation(own: Preprocessing | None, sides: tuple[int, int], crops: str) -> Preprocessing:
    """Return the preprocessing of validation images: the network's own, scaled if another size is requested."""
    if crops_for(crops, sides) == "shift":
        return Preprocessing(resize=sides, interpolation=INTERPOLATION if own is None else own.interpolation)
    own = own if own is not None and own.size is not None else USUAL
    if own.size == sides:
        return own
    scale = min(sides) / min(own.size or sides)
    resize = own.resize or own.size or sides
    scaled = round(resize * scale) if isinstance(resize, int) else (round(resize[0] * scale), round(resize[1] * scale))
    return replace(own, resize=scaled, crop=sides if own.crop is not None else None)

"""Training images that are read, decoded and augmented in worker processes while the network learns.

What is random about an image is a function of (seed, epoch, place), never of the worker that reads it: any number of
workers, and a run that was killed and resumed, see the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from idness.activations.store import FeatureStore
from idness.core.errors import DataError
from idness.core.extras import needed
from idness.core.files import sha256_of
from idness.data import ImageSet, Preprocessing
from idness.data.decoding import decode_picture
from idness.data.duplicates import exact_digests
from idness.training.plan import MIXED, Plan, mix

View = Callable[[Tensor], Tensor]
"""Makes what a training method sees of one uint8 image (3, H, W), in a worker."""
SMALL = 64
"""The side up to which images are shifted by some pixels; larger ones are cut out at random and resized, as on ImageNet."""
EVALUATED = 64
"""Images of one batch that is only looked at."""
KNOWN = 10_000
"""Of how many training images the hash is kept at most: enough to notice that others are among them, and soon read."""
NEIGHBOURS = 100
"""How many images in a row may be damaged before training stops."""


def crops_for(wanted: str, size: tuple[int, int]) -> str:
    """Choose how images are cut: `shift` up to 64 pixels a side and `resized` above, unless one is wanted."""
    return wanted if wanted != "auto" else ("shift" if min(size) <= SMALL else "resized")


def augmentation(crops: str, how: Preprocessing, pad: int = 4) -> View:
    """Make the random crop and flip of the recipes from torchvision's transforms; both draw from torch's global generator."""
    v2 = needed("torchvision.transforms.v2", "training", "train")
    assert how.size is not None
    flip = v2.RandomHorizontalFlip()
    if crops == "shift":
        shift = v2.RandomCrop(list(how.size), padding=pad, padding_mode="reflect")
        # Resized first, as in evaluation: the crop then moves by so many pixels of what the network sees.
        return lambda image: flip(shift(_channels_first(how.pixels(_channels_last(image)))))
    cut: View = v2.Compose([v2.RandomResizedCrop(list(how.size), interpolation=_mode(how), antialias=True), flip])
    return cut


@dataclass(frozen=True, eq=False)
class StreamedSet:
    """Reads its images when they are needed, so that memory does not grow with their number.

    Args:
        images: labelled images of any sizes.
        how: what an image goes through in evaluation: resize and centre crop to one size; its mean and std are not applied here.
        workers: processes that read ahead; 0 reads in the training process itself.
        classes: names of the classes; those of the set, or their numbers, if not given.
    """

    images: ImageSet
    how: Preprocessing
    workers: int = 0
    classes: tuple[str, ...] = ()
    skipped: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        images = self.images
        if not len(images):
            raise DataError(f"{images.source}: must hold at least one image, got none; check the folder or file")
        if images.labels is None:
            raise DataError(
                f"{images.source}: training needs the class of every image; put them in one folder per class"
            )
        if self.how.size is None:
            raise DataError("StreamedSet: how= must bring images to one size; give it a crop, or height and width")
        images.hold = MIXED
        most = int(images.labels.max())
        names = self.classes or images.classes or tuple(str(number) for number in range(most + 1))
        if most >= len(names):
            raise DataError(f"{images.source}: labels must be in 0 to {len(names) - 1}, got {most}")
        object.__setattr__(self, "classes", tuple(names))

    def __len__(self) -> int:
        return len(self.images)

    def example(self) -> Tensor:
        """Give a batch of two images as a network takes them, with values in [0, 1]."""
        places = list(range(min(2, len(self))))
        return next(self.evaluated(places, workers=0))[0] / 255

    def fingerprint(self) -> str:
        """Return a hash of the images' content and the class names; files that have not changed are read once."""
        return sha256_of(("\0".join(self.classes), self.images.fingerprint(FeatureStore().stamps)))

    def digests(self) -> NDArray[np.uint8]:
        """Hash the pixels of some images as they are in their files, so that they are known again."""
        return exact_digests(self.images, KNOWN)

    def preprocessing(self, mean: Sequence[float], std: Sequence[float]) -> Preprocessing:
        """Say what a picture goes through before the trained network."""
        return replace(self.how, mean=tuple(mean), std=tuple(std))

    def blocks(self) -> Sequence[int] | None:
        """Say where blocks begin that are best read as a whole."""
        return self.images.blocks()

    def problems(self) -> list[str]:
        """Name the images that could not be read so far; their next neighbours were taken in their places."""
        return [self.skipped[place] for place in sorted(self.skipped)]

    def evaluated(self, places: Sequence[int], *, workers: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Give batches of images as they are in evaluation, uint8 (N, 3, H, W), and their labels."""
        batches = [places[start : start + EVALUATED] for start in range(0, len(places), EVALUATED)]
        look = partial(_evaluation, how=self.how)
        requests = [[(0, place) for place in batch] for batch in batches]
        return self._loaded(requests, _Samples(self.images, look, 0), self.workers if workers is None else workers)

    def batches(
        self, plan: Plan, first: int, last: int, *, crops: str = "auto", augment: bool = True, view: View | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Give this process's batches from one step to before another, augmented, as uint8 (N, 3, H, W) unless `view` makes more."""
        assert self.how.size is not None
        cut = augmentation(crops_for(crops, self.how.size), self.how) if augment else partial(_evaluation, how=self.how)
        samples = _Samples(self.images, cut if view is None else _Both(cut, view), plan.seed)
        return self._loaded(_Requests(plan, first, last), samples, self.workers)

    def _loaded(self, requests: Any, samples: _Samples, workers: int) -> Iterator[tuple[Tensor, Tensor]]:
        loader: Any = DataLoader(
            samples,
            batch_sampler=requests,
            num_workers=workers,
            collate_fn=_stacked,
            pin_memory=torch.cuda.is_available(),
            generator=torch.Generator(),  # the caller's random state is left alone
        )
        for images, labels, problems in loader:
            self.skipped.update(problems)
            yield images, labels


@dataclass(frozen=True)
class _Requests:
    """Lists, batch by batch, which images one process asks for; made while they are asked for."""

    plan: Plan
    first: int
    last: int

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        shares = self.plan.shares()
        for _, epoch, chosen in self.plan.steps(self.first, self.last):
            for share in shares:
                yield [(epoch, place) for place in chosen[share].tolist()]


@dataclass(frozen=True)
class _Both:
    """Cuts an image, then makes of it what the training method sees."""

    cut: View
    view: View

    def __call__(self, image: Tensor) -> Tensor:
        return self.view(self.cut(image))


class _Samples(Dataset[tuple[Tensor, int, int, str]]):
    """Reads single images, each with random numbers of its own."""

    def __init__(self, images: ImageSet, look: View, seed: int) -> None:
        self.images, self.look, self.seed = images, look, seed

    def __getitem__(self, request: tuple[int, int]) -> tuple[Tensor, int, int, str]:
        epoch, place = request
        found, image, problem = self._readable(place)
        generator = torch.default_generator
        kept = generator.get_state()
        generator.manual_seed(mix(self.seed, "augment", epoch, place))
        try:
            assert self.images.labels is not None
            return self.look(image), int(self.images.labels[found]), place, problem
        finally:
            generator.set_state(kept)

    def _readable(self, place: int) -> tuple[int, Tensor, str]:
        """Read an image, or the next one that can be read: always the same one for the same damaged image."""
        problem = ""
        for further in range(min(NEIGHBOURS, len(self.images))):
            found = (place + further) % len(self.images)
            try:
                return found, read_pixels(self.images, found), problem
            except DataError as error:
                problem = problem or f"{self.images.item(place)}: {error}"
        raise DataError(f"{self.images.source}: {NEIGHBOURS} images in a row cannot be read; the first: {problem}")


def read_pixels(images: ImageSet, place: int) -> Tensor:
    """Read one image as uint8 (3, H, W)."""
    data = images.encoded(place)
    return _channels_first(np.asarray(images.picture(place) if data is None else decode_picture(data)))


def _evaluation(image: Tensor, how: Preprocessing) -> Tensor:
    return _channels_first(how.pixels(_channels_last(image)))


def _channels_first(pixels: Any) -> Tensor:
    return torch.from_numpy(np.array(pixels)).permute(2, 0, 1).contiguous()


def _channels_last(image: Tensor) -> Any:
    return np.ascontiguousarray(image.permute(1, 2, 0).numpy())


def _mode(how: Preprocessing) -> Any:
    modes = needed("torchvision.transforms.v2", "training", "train").InterpolationMode
    return modes(how.interpolation) if how.interpolation in ("bilinear", "bicubic", "nearest") else modes.BILINEAR


def _stacked(samples: list[tuple[Tensor, int, int, str]]) -> tuple[Tensor, Tensor, dict[int, str]]:
    images, labels, places, problems = zip(*samples, strict=True)
    told = {place: problem for place, problem in zip(places, problems, strict=True) if problem}
    return torch.stack(images), torch.tensor(labels), told

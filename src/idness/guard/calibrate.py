"""Makes a guard from a network's name and folders of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from idness.core.errors import DataError, InputError, ModelError
from idness.core.progress import Listener
from idness.core.types import Activations
from idness.data import ActivationsSet, ImageSet, Preprocessing, embedded, open_set, preprocessing_for, read_batches
from idness.detectors.registry import parse
from idness.guard.guard import Guard
from idness.guard.neighbours import Gallery, chosen
from idness.metrics import accuracy
from idness.networks.split import SplitModel, load_model
from idness.selection.auto import choose

BATCH = 64
SEED = 0
"""The order in which images are divided: random, so that the parts are alike, and the same every time."""


@dataclass
class Prepared:
    """Is a guard with an account of how it was made, line by line."""

    guard: Guard
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Read:
    """Holds the activations of a set's readable, distinct images and their places in the set."""

    images: ImageSet
    acts: Activations
    index: NDArray[np.int64]


def prepare_guard(
    spec: str,
    data: str | Path,
    *,
    weights: str | Path | None = None,
    method: str = "auto",
    train: str | Path | None = None,
    ood: str | Path | None = None,
    recall: Sequence[float] | None = None,
    false_alarm: Sequence[float] | None = None,
    per_class: bool = False,
    preprocessing: Preprocessing | None = None,
    layer: str | None = None,
    gallery: bool = True,
    listener: Listener | None = None,
) -> Prepared:
    """Load a network, choose and fit a detector, and calibrate a guard on in-distribution images.

    A detector never learns from the images that calibrate: without `train`, the images are divided in half by a fixed random order.

    Args:
        spec: the network, as `load_model` takes it.
        data: in-distribution images that the network was not trained on: a folder, or any set that `open_set` takes.
        weights: the network's weights.
        method: a method such as `scale(percentile=85)`, or `auto`.
        train: images for detectors that learn, such as the network's training images.
        ood: images that should be called foreign, to choose a method by.
        recall: share of in-distribution images to keep; several give several thresholds.
        false_alarm: share that may be flagged, in place of recall.
        per_class: whether each predicted class has its own threshold.
        preprocessing: how pictures become input, where the network does not say.
        layer: the final linear layer's name, where it should not be searched.
        gallery: whether to keep thumbnails of some images for display.
        listener: hears how far reading has come.
    """
    hear = listener or Listener()
    model = load_model(spec, weights)
    how = preprocessing or _expected(model, spec, weights)
    split = SplitModel(model, layer, example=_example(how))
    notes = [f"network {spec}, final layer {split.layer!r}; pictures: {how.describe()}"]
    doubt = how.suspicion()
    if doubt:
        notes.append(f"caution: {doubt}")
    known = class_names_for(model, spec)
    ids, names = _labelled(_read(split, how, data, notes, hear), known, split.head.classes, notes)
    learn, calibrate, place = _divide(split, how, ids, train, method, known, notes, hear)
    foreign = None if ood is None else _read(split, how, ood, notes, hear).acts
    detector = parse(method) if method != "auto" else None
    if detector is None:
        assert learn is not None
        choice = choose(split, learn, foreign)
        detector = choice.detector
        notes.append(f"auto: {choice.why}")
        notes += [f"not tried: {reason}" for reason in choice.left_out]
    guard = Guard(split, detector, preprocessing=how, class_names=names or known, spec=spec)
    if detector.needs_train:
        assert learn is not None
        guard.fit(learn)
    guard.calibrate(calibrate, recall, false_alarm=false_alarm, per_class=per_class)
    if gallery:
        guard.gallery = _gallery(guard, ids.images, calibrate, place)
    return Prepared(guard, notes)


def class_names_for(model: nn.Module, spec: str) -> tuple[str, ...] | None:
    """Find the names of a network's classes: its own `class_names`, the embedded benchmark's, or torchvision's."""
    own = getattr(model, "class_names", None)
    if isinstance(own, Sequence) and not isinstance(own, str):
        return tuple(str(name) for name in own)
    if embedded.owns(spec):
        return embedded.classes()
    kind, _, name = spec.partition(":")
    if kind == "torchvision":
        from torchvision.models import get_model_weights

        entry = next(iter(get_model_weights(name)), None)
        return tuple(entry.meta["categories"]) if entry is not None and "categories" in entry.meta else None
    return None


def _expected(model: nn.Module, spec: str, weights: str | Path | None) -> Preprocessing:
    """Find how pictures become the network's input, or ask for it."""
    found = preprocessing_for(model, spec, None if weights is None else str(weights))
    if found is None:
        raise ModelError(
            f"{spec}: how a picture becomes its input is not known; give --size, --mean and --std, or set model.preprocessing"
        )
    return found


def _read(split: SplitModel, how: Preprocessing, data: str | Path, notes: list[str], hear: Listener) -> Read:
    """Run a set through the network; what cannot be read and what is there twice is left out and noted."""
    images = open_set(str(data))
    if isinstance(images, ActivationsSet):
        raise DataError(f"{images.source}: is a file of activations; a guard is calibrated on images")
    if len(images) == 0:
        raise DataError(f"{images.source}: holds no images; supported names end in .jpg, .png, .webp, ...")
    hear.phase(images.source, len(images))
    parts, places, seen, twice = [], [], set(), 0
    spans = ((start, min(start + BATCH, len(images))) for start in range(0, len(images), BATCH))
    for batch in read_batches(images, how, spans):
        notes += [f"skipped {images.item(index)}: {reason}" for index, reason in batch.skipped]
        fresh = []
        for row, digest in enumerate(batch.digests):
            key = digest.tobytes()
            if key not in seen:
                seen.add(key)
                fresh.append(row)
        twice += len(batch.digests) - len(fresh)
        if fresh:
            parts.append(split.split(how.normalize(batch.pixels[fresh])))
            places.append(batch.index[fresh])
        hear.advance(batch.stop - batch.start)
    if not parts:
        raise DataError(f"{images.source}: none of its {len(images)} images could be read; the first: {notes[-1]}")
    if twice:
        notes.append(f"{images.source}: left out {twice} images that are there twice; copies would spoil the guarantee")
    return Read(images, Activations.concat(parts), np.concatenate(places))


def _labelled(
    found: Read, known: Sequence[str] | None, classes: int, notes: list[str]
) -> tuple[Read, tuple[str, ...] | None]:
    """Give the activations their labels where the folders are the network's classes, and the classes' names."""
    images, names = found.images, found.images.classes
    if images.labels is None:
        return found, None
    labels = torch.from_numpy(images.labels[found.index])
    if known is not None and names and set(names) <= set(known):
        labels = torch.tensor([known.index(name) for name in names])[labels]
        names = tuple(known)
    elif len(names) != classes and names:
        notes.append(
            f"{images.source}: has {len(names)} class folders, the network {classes} classes; labels are not used"
        )
        return found, None
    if int(labels.max()) >= classes:
        raise InputError(
            f"{images.source}: labels must be below {classes}, the network's classes, got {int(labels.max())}"
        )
    share = accuracy(found.acts.logits, labels)
    notes.append(
        f"{images.source}: {len(labels):,} images, of which the network classifies {100 * share:.1f} % as their folder says"
    )
    if share < 2 / classes:
        notes.append(
            "caution: that is no better than chance; are the folders in the order of the network's classes, and the input right?"
        )
    acts = Activations(found.acts.features, found.acts.logits, labels)
    return Read(images, acts, found.index), names or None


def _divide(
    split: SplitModel,
    how: Preprocessing,
    ids: Read,
    train: str | Path | None,
    method: str,
    known: Sequence[str] | None,
    notes: list[str],
    hear: Listener,
) -> tuple[Activations | None, Activations, NDArray[np.int64]]:
    """Say which images the detector learns from, which ones calibrate, and where those are in their set."""
    order = torch.randperm(len(ids.acts), generator=torch.Generator().manual_seed(SEED))
    if train is not None:
        learned, _ = _labelled(_read(split, how, train, notes, hear), known, split.head.classes, notes)
        notes.append(
            f"the detector learns from {len(learned.acts):,} images of {learned.images.source}"
            f"; all {len(ids.acts):,} of {ids.images.source} calibrate"
        )
        shuffled = torch.randperm(len(learned.acts), generator=torch.Generator().manual_seed(SEED))
        return learned.acts[shuffled], ids.acts[order], ids.index[order.numpy()]
    if method != "auto" and not parse(method).needs_train:
        notes.append(f"all {len(ids.acts):,} images calibrate; {method} learns nothing from images")
        return None, ids.acts[order], ids.index[order.numpy()]
    half = len(order) // 2
    if half < 1:
        raise InputError(
            f"{ids.images.source}: needs images to learn from and others to calibrate, got {len(order)}; add images or give --train"
        )
    notes.append(
        f"{half:,} images chosen at random (seed {SEED}) choose and teach the detector, the other {len(order) - half:,} calibrate"
    )
    return ids.acts[order[:half]], ids.acts[order[half:]], ids.index[order[half:].numpy()]


def _gallery(guard: Guard, images: ImageSet, acts: Activations, place: NDArray[np.int64]) -> Gallery:
    rows = chosen(len(acts))
    pictures = [images.picture(int(place[row])) for row in rows]
    kept = acts[torch.tensor(rows)]
    return Gallery.of(pictures, kept.features, kept.logits.argmax(dim=1), guard.detector.score(kept))


def _example(how: Preprocessing) -> torch.Tensor | None:
    size = how.size
    return None if size is None else torch.zeros(2, 3, *size)

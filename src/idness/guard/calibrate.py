"""Makes a guard from a network's name and folders of images."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor

from idness.activations.extract import collect
from idness.core.errors import DataError, IdnessWarning, InputError
from idness.core.method_text import read_method
from idness.core.progress import Listener, heard_warnings
from idness.core.types import Activations, InputEditor
from idness.data import ActivationsSet, ImageSet
from idness.data.open import open_argument
from idness.detectors.detector import Detector
from idness.detectors.registry import build, parse
from idness.guard.guard import Guard
from idness.guard.inputs import InputWatch
from idness.guard.neighbours import Gallery, chosen
from idness.guard.suspicions import CAUTION, check_apart, classified, seen_before
from idness.networks.open import ModelOptions, Network, open_network
from idness.selection.recommend import (
    SEED,
    harmed_by_scaling,
    learning_half,
    recommend_for,
    scale_percentile,
    scaling,
)


@dataclass
class Prepared:
    """Holds a guard, and an account of how it was made, line by line."""

    guard: Guard
    notes: list[str] = field(default_factory=list)


def prepare_guard(
    model: str | ModelOptions,
    data: str | Path,
    *,
    method: str = "auto",
    train: str | Path | None = None,
    ood: str | Path | None = None,
    recall: Sequence[float] | None = None,
    false_alarm: Sequence[float] | None = None,
    per_class: bool = False,
    any_accuracy: bool = False,
    gallery: bool = True,
    listener: Listener | None = None,
) -> Prepared:
    """Load a network, choose and fit a detector, and calibrate a guard on in-distribution images.

    A detector is never chosen or fitted on the images that calibrate. If one half of `data`, picked at random with a fixed seed, serves to
    choose it (`auto`, `percentile=auto`) or to fit it (without `train`), the other half calibrates; otherwise all images do.

    Args:
        model: the network's name, as `load_model` takes it, or its options.
        data: in-distribution images that the network was not trained on: a folder, or any set that `open_set` takes.
        method: a method such as `scale(percentile=85)`; `auto` takes the recommended one, `scale(percentile=auto)` for SCALE alone.
        train: images for detectors that learn, such as the network's training images.
        ood: OOD images, to choose a method by.
        recall: share of in-distribution images to keep; several give several thresholds.
        false_alarm: share that may be flagged, in place of recall.
        per_class: whether each predicted class has its own threshold.
        any_accuracy: whether to continue if accuracy on labelled images is at chance level.
        gallery: whether to keep thumbnails of some images for display.
        listener: progress callback.
    """
    options = model if isinstance(model, ModelOptions) else ModelOptions(model, engine="auto")
    hear, notes = listener or Listener(), list[str]()
    # What is misspelt or not there is told before anything runs.
    twice = _looks_twice(method)
    images = _open("data", data)
    learned = None if train is None else _open("train", train, fitted=True)
    flagged = None if ood is None else _open("ood", ood)
    run = sum(len(part) for part in (images, learned, flagged) if isinstance(part, ImageSet))
    with heard_warnings(lambda text: notes.append(f"{CAUTION}{text}")):
        network = open_network(options, images=images, expected=run)
    split, how = network.split, network.preprocessing
    ending = f" ({split.ending})" if split.ending else ""
    notes.insert(0, f"network {options.model}, final layer {split.layer!r}{ending}; pictures: {how.describe()}")
    if network.engine is not None:
        notes.append(f"engine: {network.engine.describe()}")
    if split.multi_label:
        notes.append("an image may get several labels, or none (multi-label): scores add up what each label says")
    watch = InputWatch()
    ids = _read(network, images, notes, hear, edit_with=twice, watch=watch)
    if images.labels is not None:
        notes += classified(ids, network, any_accuracy=any_accuracy)
    taught = None if learned is None else _taught(network, learned, notes, hear, twice)
    others = None if flagged is None else _read(network, flagged, notes, hear)
    notes += seen_before(ids, options.located()[1])
    check_apart({"data": ids, "train": taught, "ood": others}, notes)
    detector, learn, rows = choose(method, network, ids, taught, None if others is None else others.acts, notes, hear)
    guard = Guard(split, detector, preprocessing=how, class_names=network.class_names, spec=network.spec)
    if learn is not None:
        guard.fit(learn)
    calibrate = ids.acts[rows]
    guard.calibrate(calibrate, recall, false_alarm=false_alarm, per_class=per_class)
    guard.input_range = watch.found(how)
    if gallery:
        guard.gallery = _gallery(guard, images, calibrate)
    return Prepared(guard, notes)


def guard_for(model: str, images: str | os.PathLike[str], recall: float, **options: Any) -> Guard:
    """Make a guard as `prepare_guard` does; fields of `ModelOptions` are options too. Its cautions are warnings."""
    own = {field.name: options.pop(field.name) for field in fields(ModelOptions) if field.name in options}
    opened = ModelOptions(model, **({"engine": "auto"} | own))
    made = prepare_guard(opened, images if isinstance(images, str) else Path(images), recall=[recall], **options)
    for note in made.notes:
        if note.startswith(CAUTION):
            warnings.warn(note.removeprefix(CAUTION), IdnessWarning, stacklevel=3)
    return made.guard


@overload
def _open(name: str, data: str | Path) -> ImageSet: ...
@overload
def _open(name: str, data: str | Path, *, fitted: bool) -> ImageSet | ActivationsSet: ...
def _open(name: str, data: str | Path, *, fitted: bool = False) -> ImageSet | ActivationsSet:
    images = open_argument(name, data)
    if isinstance(images, ActivationsSet):
        if fitted:
            return images
        raise DataError(f"{images.source}: is a file of activations; a guard is calibrated on images")
    if len(images) == 0:
        raise DataError(f"{images.source}: holds no images; supported names end in .jpg, .png, .webp, ...")
    return images


def _read(
    network: Network,
    images: ImageSet,
    notes: list[str],
    hear: Listener,
    *,
    edit_with: InputEditor | None = None,
    watch: InputWatch | None = None,
) -> ActivationsSet:
    """Run a set through the network; what cannot be read and what is there twice is left out and noted."""
    look = None if watch is None else lambda inputs, _: watch.note(inputs)
    found = collect(network, images, distinct=True, edit=look, edit_with=edit_with, listener=hear)
    notes += [f"skipped {images.item(index)}: {reason}" for index, reason in found.acts.skipped]
    repeated = len(images) - len(found.acts) - len(found.acts.skipped)
    if repeated:
        notes.append(
            f"{images.source}: left out {repeated} images that are there twice; copies would spoil the guarantee"
        )
    return found


def _taught(
    network: Network, learned: ImageSet | ActivationsSet, notes: list[str], hear: Listener, twice: InputEditor | None
) -> ActivationsSet:
    """Run training images through the network, or read their stored activations."""
    if isinstance(learned, ImageSet):
        found = _read(network, learned, notes, hear, edit_with=twice)
        notes += [] if learned.labels is None else classified(found, network, any_accuracy=True)
        return found
    if twice is not None:
        raise InputError(
            f"train={learned.source}: holds what the network makes of images, and this method changes the images; give the images"
        )
    found = collect(network, learned)
    notes += [f"skipped row {row} of {learned.source}: {reason}" for row, reason in found.acts.skipped]
    return found


def _looks_twice(method: str) -> InputEditor | None:
    """Give the detector that was asked for if it changes the images; whatever is chosen by measuring never does."""
    measured = method == "auto" or read_method(method)[0].lower() == "scale"
    return None if measured else parse(method).input_edit


def choose(
    method: str,
    network: Network,
    ids: ActivationsSet,
    taught: ActivationsSet | None,
    ood: Activations | None,
    notes: list[str],
    hear: Listener,
) -> tuple[Detector, Activations | None, Tensor]:
    """Return the detector, the activations that it learns from (None if nothing), and the rows of `ids` that calibrate.

    A detector is chosen and learns on one half of `ids`, and the other half calibrates, unless neither needs images of `ids`.
    """
    count = len(ids.acts)
    part, order = learning_half(ids)
    measured = True
    if method == "auto":
        _check_halves(ids, count)
        found = recommend_for(network, part, learn=None if taught is None else taught.acts, ood=ood, listener=hear)
        notes += [f"auto: {found.why} {found.risk}".strip(), *(f"not tried: {reason}" for reason in found.left_out)]
        detector, measured = found.detector, bool(found.aurocs)
    elif read_method(method)[1].get("percentile") == "auto":
        _check_halves(ids, count)
        detector = _scaled(method, scaling(network, part, ood=ood, listener=hear), notes)
    else:
        detector, measured = parse(method), False
        if detector.name == "scale":
            gains = scaling(network, ids, ood=ood, listener=hear)
            warning = harmed_by_scaling(gains, float(detector.options()["percentile"]))
            notes += [f"{CAUTION}{warning}"] if warning else []
    if measured:
        detector.chosen_on(part.acts)
    learns = detector.needs_train and taught is None
    if learns:
        _check_halves(ids, count)
    rows = order[count // 2 :] if measured or learns else order
    rest = f"{'the other' if len(rows) < count else 'all'} {len(rows):,} of {ids.name} calibrate"
    uses = " and ".join(use for use, true in (("chosen", measured), ("fitted", learns)) if true)
    said = f"the detector is {uses} on {count - len(rows):,} images picked at random (seed {SEED})" if uses else ""
    learn = ids.acts[order[: count // 2]] if learns else None
    if taught is not None and detector.needs_train:
        said = f"{said}{'; it' if said else 'the detector'} learns from {len(taught.acts):,} images of {taught.name}"
        shuffled = torch.randperm(len(taught.acts), generator=torch.Generator().manual_seed(SEED))
        learn = taught.acts[shuffled]
    notes.append(f"{said or f'{detector.name} learns nothing from images'}; {rest}")
    return detector, learn, rows


def _check_halves(ids: ActivationsSet, count: int) -> None:
    if count < 2:
        raise InputError(
            f"{ids.name}: needs images to learn or choose from and others to calibrate, got {count}; add images"
        )


def _scaled(method: str, gains: Mapping[float, float], notes: list[str]) -> Detector:
    """Return SCALE at the percentile that gains most, or the plain energy score if none helps."""
    name, options = read_method(method)
    best = scale_percentile(gains)
    if best is None:
        notes.append(
            "scale(percentile=auto): no percentile helps this network, so it is not scaled: the plain energy score"
        )
        return build("ebo")
    notes.append(
        f"scale(percentile=auto): {best:g} gains most, {gains[best]:+.2f} logits of AUROC over the energy score"
    )
    return build(name, **(options | {"percentile": best}))


def _gallery(guard: Guard, images: ImageSet, acts: Activations) -> Gallery:
    kept = acts[torch.tensor(chosen(len(acts)))]
    assert kept.index is not None
    pictures = [images.picture(place) for place in kept.index.tolist()]
    return Gallery.of(pictures, kept.features, kept.logits.argmax(dim=1), guard.detector.score(kept))

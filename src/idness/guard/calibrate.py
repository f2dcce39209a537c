"""Preparation of a guard from a network and images: choosing and fitting the detector, and checking the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from idness.activations.extract import collect
from idness.core.errors import DataError, InputError, OptionError
from idness.core.options import read_method
from idness.core.progress import Progress, report_warnings
from idness.core.types import Activations, InputEditor
from idness.data import ArraySet, ImageSet, Preprocessing
from idness.data.activations import ActivationsSet
from idness.data.duplicates import common
from idness.data.open import open_argument
from idness.data.preprocess import preprocessing_for
from idness.detectors.detector import Detector
from idness.detectors.registry import build, parse
from idness.guard.gallery import Gallery
from idness.guard.inputs import InputRange, InputWatch
from idness.metrics import accuracy
from idness.networks.hugging_face import preprocessing_of
from idness.networks.load import trained_on
from idness.networks.open import ModelOptions, Network, check_accuracy, open_network
from idness.selection.recommend import (
    SEED,
    harmed_by_scaling,
    learning_half,
    recommend_for,
    scale_percentile,
    scaling,
)

CAUTION = "caution: "
"""Prefix of remarks about why the guarantee may not hold."""


def prepare(
    model: str | nn.Module | ModelOptions,
    data: Any,
    notes: list[str],
    *,
    method: str = "auto",
    train: Any = None,
    ood: Any = None,
    any_accuracy: bool = False,
    gallery: bool = True,
    least: int = 0,
    progress: Progress | None = None,
    **options: Any,
) -> tuple[Network, Detector, Activations, Activations | None, InputRange | None, Gallery | None]:
    """Load a network, choose and fit a detector, and return both with the activations to calibrate on.

    A detector is never chosen or fitted on calibration images. If it is chosen (`auto`, `percentile=auto`) or fitted (without `train`)
    on images of `data`, a random half (fixed seed) is used for that and the other half for calibration; otherwise all images calibrate.

    `model` and `data` are those of `Guard.for_images`, and `options` are fields of `ModelOptions`. `method` may be `auto`, or
    `scale(percentile=auto)` for the best percentile. Remarks are appended to `notes`; at least `least` images must remain to calibrate on.

    Returns:
        The network, the fitted detector, the activations to calibrate on, the activations of OOD images if given, the range of the
        network's input, and the gallery.
    """
    if not isinstance(model, ModelOptions):
        model = ModelOptions(model, engine="auto")
    if options.get("preprocessing") is not None:
        options["preprocessing"] = _read_preprocessing(options["preprocessing"])
    model, progress = replace(model, **options), progress or Progress()
    full = model.preprocessing or (preprocessing_for(model.model) if isinstance(model.model, nn.Module) else None)
    # Check all arguments before anything runs. A method that is chosen by measuring never edits images.
    measured = method == "auto" or read_method(method)[0].lower() == "scale"
    editor = None if measured else parse(method).input_edit
    images, learned = _open("data", data, full), None if train is None else _open("train", train, full)
    outliers = None if ood is None else _open("ood", ood, full)
    assert isinstance(images, ImageSet)
    if full is not None and isinstance(images, ArraySet) and images.prepared:
        model = replace(model, preprocessing=replace(full, resize=None, crop=None))  # the tensors have their size
    run = sum(len(part) for part in (images, learned, outliers) if isinstance(part, ImageSet))
    warned: list[str] = []
    with report_warnings(lambda text: warned.append(f"{CAUTION}{text}")):
        network = open_network(model, images=images, expected=run)
    split, how = network.split, network.preprocessing
    ending = f" ({split.ending})" if split.ending else ""
    notes += [f"network {network.name}, final layer {split.layer!r}{ending}; preprocessing: {how.describe()}", *warned]
    notes += [] if network.engine is None else [f"engine: {network.engine.describe()}"]
    notes += ["multi-label network: an image may have several labels or none"] if split.multi_label else []
    watch = InputWatch()
    ids = _activations(network, images, notes, progress, editor, watch)
    if images.labels is not None:
        notes += _accuracy_notes(ids, any_accuracy=any_accuracy)
    fitted = None if learned is None else _activations(network, learned, notes, progress, editor)
    if fitted is not None and isinstance(learned, ImageSet) and learned.labels is not None:
        notes += _accuracy_notes(fitted, any_accuracy=True)
    others = None if outliers is None else _activations(network, outliers, notes, progress)
    known, hashes = trained_on(model.located()[1]), ids.acts.hashes
    shared = 0 if known is None or hashes is None else common(hashes.numpy(), known)
    if shared:
        notes.append(
            f"{CAUTION}the network was trained on at least {shared:,} of the {len(ids.acts):,} images of {ids.name}, so the guard"
            " will flag more ID images than its guarantee allows; calibrate on other images"
        )
    _check_disjoint({"data": ids, "train": fitted, "ood": others}, notes)
    outside = None if others is None else others.acts
    detector, learn, rows = choose_detector(method, network, ids, fitted, outside, notes, progress)
    if len(rows) < min(least, len(ids.acts)):
        raise InputError(
            f"calibrate: {detector.name} is chosen or fitted on half of the images, and the other half must have at least {least:,}:"
            f" {2 * least - 1:,} in total, got {len(ids.acts):,}; add images, lower recall, or pass method='ebo', which uses all"
        )
    acts = ids.acts[rows]
    if learn is not None or not detector.fitted:
        detector.fit(split.head, learn)
    kept = Gallery.of(images, acts, detector) if gallery else None
    return replace(network, how=full or how), detector, acts, outside, watch.found(how), kept


def _read_preprocessing(given: Any) -> Preprocessing:
    """Return preprocessing that is given as `Preprocessing`, a mapping, or a Hugging Face image processor."""
    if isinstance(given, Mapping):
        return Preprocessing.from_dict(dict(given))
    found = preprocessing_of(given) if hasattr(given, "image_mean") else given
    if not isinstance(found, Preprocessing):
        raise OptionError(
            f"preprocessing must be a mapping with resize, crop, mean and std, got {type(given).__name__}, which cannot be expressed as one"
        )
    return found


def _open(name: str, data: Any, how: Preprocessing | None) -> ImageSet | ActivationsSet:
    images = open_argument(name, data, normalised=None if how is None else (how.mean, how.std))
    if isinstance(images, ActivationsSet) and name != "train":
        raise DataError(f"{images.source}: contains activations; pass images to calibrate on")
    if len(images) == 0:
        raise DataError(f"{images.source}: contains no images; supported names end in .jpg, .png, .webp, ...")
    return images


def _activations(
    network: Network,
    data: ImageSet | ActivationsSet,
    notes: list[str],
    progress: Progress,
    editor: InputEditor | None = None,
    watch: InputWatch | None = None,
) -> ActivationsSet:
    """Return the activations of a set, computed or stored; unreadable and duplicate images are skipped and noted."""
    if isinstance(data, ActivationsSet) and editor is not None:
        raise InputError(f"train={data.source}: contains activations, but this method edits images; pass the images")
    edit = None if watch is None else lambda inputs, _: watch.note(inputs)
    found = collect(network, data, distinct=True, edit=edit, edit_with=editor, progress=progress)
    if isinstance(data, ActivationsSet):
        notes += [f"skipped row {row} of {data.source}: {reason}" for row, reason in found.acts.skipped]
        return found
    for item, reason in ((data.item(index), reason) for index, reason in found.acts.skipped):
        notes.append(f"skipped {item}: {reason.removeprefix(f'{Path(item).name}: ')}")
    repeated = len(data) - len(found.acts) - len(found.acts.skipped)
    if repeated:
        notes.append(f"{data.source}: skipped {repeated} duplicate images, which would invalidate the guarantee")
    return found


def choose_detector(
    method: str,
    network: Network,
    ids: ActivationsSet,
    fitted: ActivationsSet | None,
    ood: Activations | None,
    notes: list[str],
    progress: Progress,
) -> tuple[Detector, Activations | None, Tensor]:
    """Return the detector, the activations that it learns from (or `None`), and the rows of `ids` to calibrate on."""
    count = len(ids.acts)
    if count < 2:
        raise InputError(
            f"{ids.name}: must contain images to choose or fit a method on and others to calibrate on, got {count}; add images"
        )
    part, order = learning_half(ids)
    name, options = ("auto", {}) if method == "auto" else read_method(method)
    measured = method == "auto" or options.get("percentile") == "auto"
    if method == "auto":
        found = recommend_for(network, part, learn=None if fitted is None else fitted.acts, ood=ood, progress=progress)
        notes += [f"auto: {found.why} {found.risk}".strip(), *(f"not tried: {reason}" for reason in found.left_out)]
        notes += [f"{finding.name}: {finding.text}" for finding in found.findings if finding.name == "OOD images"]
        detector, measured = found.detector, bool(found.aurocs)
    elif measured:
        gains = scaling(network, part, ood=ood, progress=progress)
        best = scale_percentile(gains)
        if best is None:
            detector = build("ebo")
            notes.append("scale(percentile=auto): no percentile improves on the energy score; ebo is used")
        else:
            detector = build(name, **{**options, "percentile": best})
            gain = f"{gains[best]:+.2f} logits of AUROC over the energy score"
            notes.append(f"scale(percentile=auto): percentile {best:g} is best, {gain}")
    else:
        detector = parse(method)
        if detector.name == "scale":
            gains = scaling(network, ids, ood=ood, progress=progress)
            warning = harmed_by_scaling(gains, float(detector.options()["percentile"]))
            notes += [f"{CAUTION}{warning}"] if warning else []
    if measured:
        detector.chosen_on(part.acts)
    learns = detector.needs_train and fitted is None
    rows = order[count // 2 :] if measured or learns else order
    learn = ids.acts[order[: count // 2]] if learns else None
    uses = " and ".join(use for use, true in (("chosen", measured), ("fitted", learns)) if true)
    steps = [f"the detector is {uses} on {count - len(rows):,} random images (seed {SEED})"] if uses else []
    if fitted is not None and detector.needs_train:
        steps.append(f"the detector learns from {len(fitted.acts):,} images of {fitted.name}")
        learn = fitted.acts[torch.randperm(len(fitted.acts), generator=torch.Generator().manual_seed(SEED))]
    steps = steps or [f"{detector.name} needs no training data"]
    steps.append(f"{'the other' if len(rows) < count else 'all'} {len(rows):,} images of {ids.name} set the threshold")
    notes.append("; ".join(steps))
    return detector, learn, rows


def _check_disjoint(sets: Mapping[str, ActivationsSet | None], notes: list[str]) -> None:
    """Raise if an image is in two of the sets, and note near-duplicates."""
    given = {name: found for name, found in sets.items() if found is not None}
    for (first, one), (second, other) in combinations(given.items(), 2):
        shared, alike = one.overlap(other)
        if shared:
            raise InputError(
                f"{first}= and {second}= must have no image in common, got {shared:,} in both ({one.name}, {other.name});"
                " remove them from one, since the guarantee would not hold"
            )
        if alike:
            notes.append(
                f"{CAUTION}{alike:,} images of {one.name} ({first}) have near-duplicates in {other.name} ({second}); if they are copies,"
                " the guarantee may not hold; remove them from one"
            )


def _accuracy_notes(found: ActivationsSet, *, any_accuracy: bool) -> list[str]:
    """Return remarks on the accuracy on labelled images; raise at chance level unless `any_accuracy` is set."""
    source, acts = found.name, found.acts
    classes = acts.logits.shape[1]
    if acts.labels is None:
        return [f"{source}: its classes differ from the network's {classes}; labels are ignored"]
    note = f"{source}: {len(acts):,} images, accuracy {100 * accuracy(acts.logits, acts.labels):.1f} %"
    predicted = acts.logits.argmax(dim=1).numpy()
    wrong = check_accuracy(source, acts.labels.numpy(), predicted, classes, any_accuracy=any_accuracy)
    return [note, f"{CAUTION}{wrong}"] if wrong else [note]

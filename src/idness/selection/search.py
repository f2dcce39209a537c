"""Search of the options of every method on validation data, never on test sets."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from idness.core.errors import IdnessError, IdnessWarning, InputError, OptionError
from idness.core.progress import Progress
from idness.core.scripts import Script
from idness.core.types import Activations, Head
from idness.detectors.detector import Detector, fit_many, score_many
from idness.detectors.kernels import sharing
from idness.detectors.registry import from_user, parse, rows, variants
from idness.metrics import auroc


@dataclass
class Choice:
    """The fitted detector of a method, with its AUROC on validation data, the settings tried, and the settings dropped.

    It was chosen by `validation`, `given` by the user, or is the `default` if there are no options or no validation data.
    `on_half` is the choice on half of the validation images, if requested.
    """

    detector: Detector
    chosen_by: str
    auroc: float | None = None
    tried: list[tuple[dict[str, Any], float]] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    on_half: Choice | None = None


@dataclass(frozen=True)
class Row:
    """A method to compare: a detector whose options are searched, or are `given`."""

    detector: Detector
    given: bool = False


Method = str | type[Detector] | Detector
"""A method: its name, a class, whose options are searched, or an object with its options."""


def wanted_rows(methods: Sequence[Method] | None = None) -> dict[str, Row]:
    """Return the methods to compare, by name: those given, or all that need only one pass of the network."""
    if not methods:
        return {name: Row(detector) for name, detector in rows().items()}
    found: dict[str, Row] = {}
    for method in methods:
        named = Script.named(method) or method if isinstance(method, str) else method
        if isinstance(named, str):
            given = "(" in named
            some = {named.replace(" ", ""): parse(named)} if given else variants(named)
        else:
            name, detector, given = from_user(named)
            if detector.rows and not given:
                some = {row: replace(detector, **options) for row, options in detector.rows.items()}  # type: ignore[type-var]
            elif name in found:
                raise OptionError(f"the names of methods must be unique, got {name!r} twice; rename one of the classes")
            else:
                some = {name: detector}
        found |= {name: Row(detector, given=given) for name, detector in some.items()}
    return found


@sharing()
def choose(
    wanted: Mapping[str, Row],
    head: Head,
    train: Activations | None = None,
    val: Activations | None = None,
    ood_val: Mapping[str, Activations] | None = None,
    *,
    half: Activations | None = None,
    progress: Progress | None = None,
) -> tuple[dict[str, Choice], dict[str, str]]:
    """Fit every method with every setting of its grid, and keep the setting with the highest AUROC on validation data.

    The AUROC is the mean over the OOD validation sets. A method keeps its defaults unless another setting is better. Returns
    the choice for every method that can be fitted, and the reason for each that cannot. Given `half` of the validation images,
    each choice is also made on these alone.
    """
    progress = progress or Progress()
    chosen: dict[str, Choice] = {}
    failed: dict[str, str] = {}
    for name, row in wanted.items():
        progress.advance(1)
        again = None if half is None else Row(deepcopy(row.detector))
        try:
            chosen[name] = _choose_row(row, head, train, val, ood_val or {})
            if again is not None:  # now, while shared results are cached
                with warnings.catch_warnings(), suppress(IdnessError):
                    warnings.simplefilter("ignore", IdnessWarning)  # the same as for all images
                    chosen[name].on_half = _choose_row(again, head, train, half, ood_val or {})
        except IdnessError as error:
            failed[name] = str(error)
    return chosen, failed


def _choose_row(
    row: Row, head: Head, train: Activations | None, val: Activations | None, ood_val: Mapping[str, Activations]
) -> Choice:
    start = time.perf_counter()
    if row.detector.needs_train and train is None and not (row.detector.needs_val and val is not None):
        raise InputError("needs training images, but the benchmark has none")
    remembers = row.detector.needs_val and row.detector.remembers
    searchable = val is not None and bool(ood_val) and not (remembers and train is None)
    settings = [row.detector]
    if searchable and not row.given:
        settings += [other for other in row.detector.variants() if other.options() != row.detector.options()]
    # A method that memorizes images must not be fitted on the images it is compared on.
    fitted, dropped = _fit(settings, head, train, None if searchable and row.detector.remembers else val)
    between = time.perf_counter()
    choice = Choice(fitted[0], "given" if row.given else "default", dropped=dropped)
    if searchable and val is not None:
        trials = _trials(fitted, val, ood_val)
        choice.detector, choice.auroc = max(trials, key=lambda trial: trial[1])
        for detector, value in trials:
            options = detector.options()
            choice.tried.append(({key: options[key] for key in detector.grid or options}, value))
        if len(trials) > 1 and not row.given:
            choice.chosen_by = "validation"
        if remembers:  # after the comparison, the validation images may be used for fitting
            choice.detector.fit(head, train, val=val)
        choice.detector.chosen_on(val)
    choice.seconds = {"fit": between - start, "search": time.perf_counter() - between}
    return choice


def _fit(
    settings: Sequence[Detector], head: Head, train: Activations | None, val: Activations | None
) -> tuple[list[Detector], list[str]]:
    try:
        fit_many(settings, head, train, val=val)
        return list(settings), []
    except IdnessError:
        if len(settings) == 1:
            raise
    # One setting that cannot be fitted, such as more neighbours than images, makes all fail, so fit them one by one.
    fitted, dropped = list[Detector](), list[str]()
    for setting in settings:
        try:
            fitted.append(setting.fit(head, train, val=val))
        except IdnessError as error:
            dropped.append(f"{setting.label()}: {error}")
    return fitted or [settings[0].fit(head, train, val=val)], dropped  # if none fits, raise the default's error


def _trials(
    fitted: Sequence[Detector], val: Activations, ood_val: Mapping[str, Activations]
) -> list[tuple[Detector, float]]:
    outside = [score_many(fitted, acts) for acts in ood_val.values()]
    trials: dict[tuple[float, bytes], tuple[Detector, float]] = {}
    for detector, scores, *others in zip(fitted, score_many(fitted, val), *outside, strict=True):
        value = float(np.mean([auroc(scores, other) for other in others]))
        # Settings with equal scores count once: with few classes, all large m of GEN are the same.
        trials.setdefault((value, scores.cpu().numpy().tobytes()), (detector, value))
    return list(trials.values())

"""Chooses the options of every method on validation data, and never on a test set."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idness.core.errors import IdnessError, InputError, OptionError, unknown_name
from idness.core.progress import Listener
from idness.core.scripts import Script
from idness.core.types import Activations, Head
from idness.detectors.detector import Detector, fit_many, score_many
from idness.detectors.kernels import sharing
from idness.detectors.registry import from_user, parse, row_name, rows
from idness.metrics import auroc


@dataclass
class Choice:
    """Holds the fitted detector of a row, and tells how its options came about.

    They are chosen by `validation`, `given` (by the user) or `default` (nothing to choose, or nothing to choose by). `tried` are the
    settings that were scored on validation data, `dropped` those that could not be used, each with its reason.
    """

    detector: Detector
    chosen_by: str
    auroc: float | None = None
    tried: list[tuple[dict[str, Any], float]] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """Asks for one row of the comparison: a detector at its defaults, to be searched, or one that the user has set."""

    detector: Detector
    given: bool = False


Method = str | type[Detector] | Detector
"""How a person names a row: by its text, as a class, whose options are searched, or as an object with the options it has."""


def wanted_rows(methods: Sequence[Method] | None = None) -> dict[str, Row]:
    """Give the rows of a comparison: every method of one pass, or those named.

    Args:
        methods: texts such as `scale`, `scale(percentile=95)` or `my_file.py:MyDetector`, classes, and detectors.
    """
    if not methods:
        return {name: Row(detector) for name, detector in rows().items()}
    known = rows(costly=True)
    found: dict[str, Row] = {}
    for method in methods:
        script = Script.named(method) if isinstance(method, str) else None
        if script is not None or not isinstance(method, str):
            found |= _given_rows(method if script is None else script, found)  # type: ignore[arg-type]
        elif "(" in method:
            found[method.replace(" ", "")] = Row(parse(method), given=True)
        else:
            variants = [name for name in known if method.lower() in (name.lower(), known[name].name.lower())]
            if not variants:
                raise unknown_name("method", method, known)
            found |= {name: Row(known[name]) for name in variants}
    return found


def _given_rows(method: type[Detector] | Detector | Script, others: Mapping[str, Row]) -> dict[str, Row]:
    """Give the rows of a class or an object that the user wrote: one, or a class's variants."""
    detector, fixed = from_user(method)
    if type(detector).rows and not fixed:
        return {name: Row(replace(detector, **options)) for name, options in type(detector).rows.items()}  # type: ignore[type-var]
    name = row_name(detector)
    if name in others:
        raise OptionError(f"each row needs a name of its own, got {name!r} twice; give one of the classes another name")
    return {name: Row(detector, given=fixed)}


@sharing()
def choose(
    wanted: Mapping[str, Row],
    head: Head,
    train: Activations | None = None,
    val: Activations | None = None,
    ood_val: Mapping[str, Activations] | None = None,
    *,
    listener: Listener | None = None,
) -> tuple[dict[str, Choice], dict[str, str]]:
    """Fit every row at every setting of its grid and keep the first best.

    The best has the highest AUROC of ID validation against OOD validation images, the mean over the sets of the latter. Its own
    defaults come first, so a method keeps them unless another setting is better.

    Args:
        wanted: rows by name.
        head: the network's final layer.
        train: activations of ID training images.
        val: activations of ID validation images.
        ood_val: activations of OOD validation images by set.
        listener: hears of each row; the phase is the caller's.

    Returns:
        The choice of every row that could be fitted, and the reason for each that could not.
    """
    hear = listener or Listener()
    chosen: dict[str, Choice] = {}
    failed: dict[str, str] = {}
    for name, row in wanted.items():
        hear.advance(1)
        try:
            chosen[name] = _choose_row(row, head, train, val, ood_val or {})
        except IdnessError as error:
            failed[name] = str(error)
    return chosen, failed


def to_learn_from(detector: Detector, val: Activations | None) -> Activations | None:
    """Give validation images to a method that will be compared on them, unless it would know them by heart."""
    return None if detector.remembers else val


def _choose_row(
    row: Row, head: Head, train: Activations | None, val: Activations | None, ood_val: Mapping[str, Activations]
) -> Choice:
    start = time.perf_counter()
    if row.detector.needs_train and train is None and not (row.detector.needs_val and val is not None):
        raise InputError("these learn from training images, and the benchmark has none")
    remembers = row.detector.needs_val and row.detector.remembers
    searchable = val is not None and bool(ood_val) and not (remembers and train is None)
    settings = [row.detector] if row.given or not searchable else _settings(row.detector)
    fitted, dropped = _fit(settings, head, train, to_learn_from(row.detector, val) if searchable else val)
    between = time.perf_counter()
    choice = Choice(fitted[0], "given" if row.given else "default", dropped=dropped)
    if searchable:
        assert val is not None
        trials = _trials(fitted, val, ood_val)
        choice.detector, choice.auroc = max(trials, key=lambda trial: trial[1])  # the first of equals
        choice.tried = [(_grid_options(detector), value) for detector, value in trials]
        if len(trials) > 1 and not row.given:
            choice.chosen_by = "validation"
        if remembers:  # compared without the validation images; now it may have them
            choice.detector.fit(head, train, val=val)
        choice.detector.chosen_on(val)
    choice.seconds = {"fit": between - start, "search": time.perf_counter() - between}
    return choice


def _settings(detector: Detector) -> list[Detector]:
    """List the default setting, then the grid's others."""
    others = detector.variants() if detector.grid else []
    return [detector, *(other for other in others if other.options() != detector.options())]


def _fit(
    settings: Sequence[Detector], head: Head, train: Activations | None, val: Activations | None
) -> tuple[list[Detector], list[str]]:
    try:
        fit_many(settings, head, train, val=val)
        return list(settings), []
    except IdnessError as error:
        if len(settings) == 1:
            raise
        first = error
    # One setting spoils the common fit, such as more neighbours than there are images: find out which.
    fitted: list[Detector] = []
    dropped: list[str] = []
    for setting in settings:
        try:
            fit_many([setting], head, train, val=val)
            fitted.append(setting)
        except IdnessError as error:
            dropped.append(f"{setting.label()}: {error}")
    if not fitted:
        raise first
    return fitted, dropped


def _trials(
    fitted: Sequence[Detector], val: Activations, ood_val: Mapping[str, Activations]
) -> list[tuple[Detector, float]]:
    inside = score_many(fitted, val)
    outside = {name: score_many(fitted, acts) for name, acts in ood_val.items()}
    trials: list[tuple[Detector, float]] = []
    seen: list[tuple[float, Tensor]] = []
    for place, detector in enumerate(fitted):
        value = float(np.mean([auroc(inside[place], scores[place]) for scores in outside.values()]))
        # Settings that give the same scores are one: a network with few classes makes GEN's large m alike.
        if any(value == other and torch.equal(inside[place], scores) for other, scores in seen):
            continue
        seen.append((value, inside[place]))
        trials.append((detector, value))
    return trials


def _grid_options(detector: Detector) -> dict[str, Any]:
    options = detector.options()
    return {key: options[key] for key in detector.grid} if detector.grid else options

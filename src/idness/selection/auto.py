"""Recommends a method for a network: one function, and so one answer, for every command that needs one.

With OOD images every method at every option competes on them. Without, the answer is `fuse`, which on every network that was
tried is above the energy score, unless stand-ins for OOD images, made of the ID images, show something far better; they
rank methods well, but not well enough to choose by small differences. `results/auto.md` has the measurements.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from idness.core.errors import IdnessError, IdnessWarning, InputError
from idness.core.normal import expit, logit
from idness.core.types import Activations, Head
from idness.detectors.detector import Detector, fit_many, score_many
from idness.detectors.registry import build, rows, short
from idness.metrics import Scores, auroc
from idness.selection import search

LEAD = 1.0
"""By how much, in logits of the AUROC on stand-ins, a single method must lead before it is preferred to `fuse`. The largest
lead of a method that was worse on real OOD images was 0.68."""
CLEAR = 0.25
"""By how much, in logits of the AUROC, another row must lead on OOD validation images. The best of some 300 settings leads by
luck: on the embedded network it was 0.03 ahead of `fuse` there and 2.9 points of AUROC behind on the test sets."""
HELPS, HARMS = 0.1, -0.05
"""The gain of SCALE over the energy score on stand-ins, in logits, above which it helps and below which it harms."""
PERCENTILES = (65.0, 70.0, 75.0, 80.0, 85.0, 90.0, 95.0)
CLIP = (0.005, 0.999)
"""Where AUROCs are held before their logits are averaged: one perfect kind must not outweigh all others."""
MOST = 5_000
"""ID images used on either side; more make no recommendation surer."""


LABELS = "use ebo: an image may get several labels or none, and of the scores for such networks the joint energy is the one to start from"
"""What is said of networks for which `fuse` and most methods were not made."""


@dataclass(frozen=True)
class Recommendation:
    """Says what to use on a network and why, in the words that every command shows; the detector is not fitted yet.

    `risk` names the runner-up and what it costs to be wrong. `aurocs` are those that the recommendation rests on, by method as the
    command line takes it, best first, `measured_on` `ood`, `pseudo-ood` or nothing; `left_out` could not be tried, and why.
    """

    detector: Detector
    why: str
    risk: str = ""
    aurocs: Mapping[str, float] = field(default_factory=dict)
    measured_on: str = ""
    left_out: tuple[str, ...] = ()


def recommend(
    head: Head,
    learn: Activations,
    ids: Activations,
    *,
    ood: Mapping[str, Activations] | None = None,
    pseudo: Mapping[str, Activations] | None = None,
) -> Recommendation:
    """Recommend a method and its options.

    Args:
        head: the network's final layer.
        learn: activations of ID images that methods learn from, with labels where known.
        ids: activations of other ID images, to compare on.
        ood: activations of OOD images by set, which must not be tested on later.
        pseudo: activations of stand-ins by kind, made of ID images that methods do not learn from.
    """
    if len(learn) < 1 or len(ids) < 1:
        raise InputError("auto: needs ID images to learn from and others to compare on, got too few; add images")
    if head.multi_label and not ood:
        return Recommendation(build("ebo"), LABELS)
    learn, ids = learn[:MOST], ids[:MOST]
    with warnings.catch_warnings():
        # That a method does not suit the features shows in its measured place; no need to say so for each.
        warnings.simplefilter("ignore", IdnessWarning)
        if ood:
            found = by_validation(*search.choose(search.wanted_rows(), head, learn, ids, ood))
        else:
            found = _by_stand_ins(head, learn, ids, pseudo or {})
    if found.measured_on:
        found.detector.chosen_on(learn, ids)
    return found


def by_validation(found: Mapping[str, search.Choice], failed: Mapping[str, str]) -> Recommendation:
    """Recommend the row that separated best on validation data; the first of equals."""
    row = chosen_row({name: item.auroc for name, item in found.items()})
    if row is None:
        raise InputError(
            f"auto: no method could be tried; the first reason: {next(iter(failed.values()), 'none given')}"
        )
    best = found[row]
    ranked = sorted((item for item in found.values() if item.auroc is not None), key=lambda item: -(item.auroc or 0.0))
    aurocs = {short(item.detector): item.auroc or 0.0 for item in ranked}
    rival = next((item for item in ranked if item.detector.name != best.detector.name), None)
    settings = sum(len(item.tried) for item in ranked)
    why = f"use {short(best.detector)}: on OOD validation images its AUROC is {100 * (best.auroc or 0):.2f} %, and"
    if best is ranked[0]:
        why += f" none of {settings} settings of {len(ranked)} methods is above it"
    else:
        why += f" of {settings} settings of {len(ranked)} methods none is clearly above it"
    return Recommendation(
        best.detector.variants({})[0],
        why,
        "" if rival is None else _risk(short(rival.detector), (best.auroc or 0) - (rival.auroc or 0), "there"),
        aurocs,
        "ood",
        tuple(f"{name}: {reason}" for name, reason in failed.items()),
    )


def chosen_row(aurocs: Mapping[str, float | None]) -> str | None:
    """Name the row to use by AUROCs on validation data: `fuse`, unless another is clearly above it, then the first best.

    None where nothing was measured.
    """
    known = {row: logit(float(np.clip(value, *CLIP))) for row, value in aurocs.items() if value is not None}
    best = max(known, key=lambda row: known[row], default=None)
    return "fuse" if best and known.get("fuse", -np.inf) >= known[best] - CLEAR else best


def stand_in_score(ids: Scores, pseudo: Mapping[str, Scores]) -> float:
    """Give the mean logit of the AUROCs of ID images against each kind of stand-in."""
    return float(np.mean([logit(float(np.clip(auroc(ids, scores), *CLIP))) for scores in pseudo.values()]))


def scale_gains(head: Head, ids: Activations, pseudo: Mapping[str, Activations]) -> dict[float, float]:
    """Give, for each percentile, how much SCALE gains over the energy score on stand-ins, in logits."""
    detectors = [build("ebo"), *(build("scale", percentile=p) for p in PERCENTILES)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IdnessWarning)
        fit_many(detectors, head)
        values = _stand_in_scores(detectors, ids, pseudo)
    return {p: value - values[0] for p, value in zip(PERCENTILES, values[1:], strict=True)}


def scale_percentile(gains: Mapping[float, float]) -> float | None:
    """Choose SCALE's percentile by its gains on stand-ins; none where no percentile clearly helps."""
    best = max(gains, key=lambda p: gains[p])
    return best if gains[best] > HELPS else None


def pick(fused: float, singles: Mapping[str, float], lead: float | None = None) -> str:
    """Name the row to use by scores on stand-ins: `fuse`, unless a single one is far above it or the plain energy above it."""
    best = max(singles, key=lambda name: singles[name])
    if singles[best] > fused + (LEAD if lead is None else lead):
        return best
    return "ebo" if singles["ebo"] > fused else "fuse"


def _by_stand_ins(
    head: Head, learn: Activations, ids: Activations, pseudo: Mapping[str, Activations]
) -> Recommendation:
    fused = build("fuse").fit(head, learn, val=ids)
    if not pseudo:
        why = f"use {short(fused)}: nothing was measured, as there are neither OOD images nor pictures to make stand-ins of"
        return Recommendation(fused.variants({})[0], why)
    tried, failed = _fitted(head, learn, ids)
    ours, *others = _stand_in_scores([fused, *tried.values()], ids, pseudo)
    values = dict(zip(tried, others, strict=True))
    plain, name = values["ebo"], pick(ours, values)
    detector = {**tried, "fuse": fused}[name]
    everything = {short(fused): ours} | {short(tried[row]): value for row, value in values.items()}
    aurocs = {label: expit(value) for label, value in sorted(everything.items(), key=lambda item: -item[1])}
    here = f"on stand-ins for OOD images made of {len(ids):,} ID images"
    why = {
        "fuse": f"use {short(detector)}: {here} its AUROC is {_percent(ours)} %, that of the energy score {_percent(plain)} %",
        "ebo": f"use {short(detector)}: {here} its AUROC is {_percent(plain)} %, and combining methods only lowers it",
    }.get(name, f"use {short(detector)}: {here} its AUROC is far above all else, {_percent(values.get(name, ours))} %")
    second = max((row for row in values if row != name), key=lambda row: values[row])
    chosen = ours if name == "fuse" else values[name]
    risk = _risk(short(tried[second]), expit(chosen) - expit(values[second]), "there")
    left = tuple(f"{row}: {reason}" for row, reason in failed.items())
    return Recommendation(detector.variants({})[0], why, risk, aurocs, "pseudo-ood", left)


def _fitted(head: Head, learn: Activations, ids: Activations) -> tuple[dict[str, Detector], dict[str, str]]:
    """Fit every row at its defaults; say why where that cannot be."""
    found: dict[str, Detector] = {}
    failed: dict[str, str] = {}
    for name, detector in rows().items():
        if detector.name != "fuse":
            try:
                found[name] = detector.fit(head, learn, val=search.to_learn_from(detector, ids))
            except IdnessError as error:
                failed[name] = str(error)
    return found, failed


def _stand_in_scores(detectors: list[Detector], ids: Activations, pseudo: Mapping[str, Activations]) -> list[float]:
    inside = score_many(detectors, ids)
    outside = {kind: score_many(detectors, acts) for kind, acts in pseudo.items()}
    return [
        stand_in_score(scores, {kind: found[place] for kind, found in outside.items()})
        for place, scores in enumerate(inside)
    ]


def _risk(rival: str, lead: float, where: str) -> str:
    """Name the runner-up and what choosing wrongly would cost."""
    if lead >= 0:
        return f"the runner-up is {rival}, {100 * lead:.2f} points behind {where}"
    return f"the best single method is {rival}, {-100 * lead:.2f} points ahead {where}, where single methods are often overrated"


def _percent(value: float) -> str:
    return f"{100 * expit(value):.1f}"

"""One recommendation of a method for a network, with its reasons, for `auto`, `calibrate`, `doctor` and `bench`.

With OOD images, all methods and options are compared on them. Without, the recommendation is `fuse`, unless on pseudo-OOD images made
of the ID images another method is far better, or `fuse` is hardly better than the energy score: these images rank methods well, but not
well enough to decide by small differences. `results/auto.md` has the measurements.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idness.activations.extract import collect
from idness.core.errors import IdnessError, IdnessWarning, InputError
from idness.core.progress import Progress
from idness.core.text import listed
from idness.core.types import Activations, Head, check_acts, is_signed
from idness.data import ImageSet, embedded
from idness.data.activations import ActivationsSet
from idness.data.duplicates import EXACT
from idness.data.open import open_argument
from idness.detectors.detector import Detector, fit_many, score_many
from idness.detectors.registry import build, rows, short
from idness.intervals import expit, logit
from idness.metrics import Scores, auroc
from idness.networks.open import ModelOptions, Network, check_accuracy, open_network
from idness.selection import search
from idness.selection.pseudo_ood import pseudo_activations

LEAD, CLEAR_LEAD = 1.5, 0.25
"""Lead in logits of the AUROC at which a single method is preferred to `fuse`, on pseudo-OOD images, where methods that were worse
on real ones led by up to 1.01, and on OOD validation images, where the best of some 300 settings leads by luck."""
FUSE_LEAD = 0.06
"""Lead in logits of the AUROC on pseudo-OOD images below which the energy score is used instead of `fuse`: it was 0.04 on the one
network on which `fuse` was worse on real OOD images, and at least 0.08 on the others."""
HELPS, HARMS = 0.1, -0.05
"""Gain of SCALE over the energy score, in logits of the AUROC, above which it helps and below which it harms."""
PERCENTILES = (65.0, 70.0, 75.0, 80.0, 85.0, 90.0, 95.0)
CLIP = (0.005, 0.999)
"""Range of AUROCs before their logits are averaged, so that one perfect kind does not outweigh all others."""
MOST, FITTED = 2000, 5000
"""Maximum numbers of ID images that a recommendation is based on, and of training images that methods are fitted on for it."""
SEED = 0
"""Seed of the random half of a set on which a detector is chosen and fitted."""
ENOUGH = 30
"""Minimum numbers of ID and of OOD images to measure anything; with fewer, an AUROC is uncertain by more than ten points."""
UNMEASURED = (
    "Nothing was measured: there are no OOD images, and no ID images to make pseudo-OOD images from; add ID images."
)
MULTI_LABEL = "The network is multi-label, for which the joint energy is the best tested score."


@dataclass(frozen=True)
class Finding:
    """One observation about a network; `good` tells whether it is evidence for SCALE."""

    name: str
    text: str
    good: bool | None = None


@dataclass(frozen=True)
class Recommendation:
    """A recommended detector, and the reasons for it.

    Attributes:
        detector: the detector, fitted if methods could be compared.
        row: its name in a comparison, such as `ash-s`.
        why: the reason, in one or two sentences.
        risk: the runner-up and what a wrong choice would cost; empty if nothing was measured.
        aurocs: the AUROCs that were compared, by method and best first.
        left_out: methods that could not be tried, with the reason.
        findings: observations about the network, among them whether SCALE helps.
    """

    detector: Detector
    row: str
    why: str
    risk: str = ""
    aurocs: Mapping[str, float] = dataclasses.field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def method(self) -> str:
        """The detector as the command line takes it."""
        return short(self.detector)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        plain = dataclasses.asdict(self)
        del plain["detector"]
        return {"method": self.method, **plain}


def recommend(
    head: Head,
    learn: Activations | None,
    ids: Activations,
    *,
    ood: Mapping[str, Activations] | None = None,
    pseudo: Mapping[str, Activations] | None = None,
    searched: Mapping[str, search.Choice | None] | None = None,
) -> Recommendation:
    """Recommend a method and its options.

    Args:
        head: final layer of the network.
        learn: activations of ID images to fit methods on, with labels if known; every other one of `ids` if `None`.
        ids: activations of other ID images, to compare methods on.
        ood: activations of OOD images by set; they must not be used for testing afterwards.
        pseudo: activations of pseudo-OOD images by kind, made of ID images that methods are not fitted on.
        searched: choices of the search on these ID and OOD images, if it was done already.

    Raises:
        InputError: if there are no images, or they do not match the head.
    """
    if len(ids) < (2 if learn is None else 1) or (learn is not None and len(learn) == 0):
        raise InputError("auto: needs ID images to fit methods on and others to compare them on; add images")
    for what, acts in {"ids": ids, **(ood or {})}.items():
        check_acts("recommend", what, acts, head)
    findings, count = [sign_of_features(ids)], sum(map(len, (ood or {}).values()))
    real = ood if ood and count >= ENOUGH else {}
    if head.multi_label and not real:
        return _untested("ebo", MULTI_LABEL, findings)
    if count and not real:
        findings.append(Finding("OOD images", f"{count} are too few to choose a method; {ENOUGH} are needed"))
    few = f"Nothing was measured: {len(ids)} images are too few." if len(ids) < ENOUGH else ""
    learn, ids = (ids[::2], ids[1::2]) if learn is None else (learn[:: _step(len(learn), FITTED)], ids)
    # A method that requires non-negative features is never recommended for signed ones.
    signed = is_signed(ids) or is_signed(learn)
    candidates = {name: row for name, row in rows().items() if not (signed and row.assumes_nonnegative)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IdnessWarning)  # methods that do not suit the features are ranked accordingly
        if few or not real:
            candidates["fuse"] = build("fuse").fit(head, learn, val=ids)
        if few:
            return _untested("fuse", few, findings)
        if others := real or pseudo:
            found = _compare(candidates, head, learn, ids, others, searched, real=bool(real))
            where = "your OOD images" if real else "pseudo-OOD images"
            findings += _measurements(found, scale_gains(head, ids, others), where)
        else:
            found = replace(_untested("fuse", UNMEASURED, findings), detector=candidates["fuse"])
    parts = [part.name for part in getattr(found.detector, "used", ()) if signed]
    note = f" As some features are negative, its parts are {listed(parts)}." if parts else ""
    found.detector.chosen_on(learn, ids)
    return replace(found, why=f"{found.why}{note}", findings=tuple(findings))


def recommend_for(
    network: Network,
    ids: ActivationsSet,
    *,
    learn: Activations | None = None,
    ood: Activations | Mapping[str, Activations] | None = None,
    searched: Mapping[str, search.Choice | None] | None = None,
    progress: Progress | None = None,
) -> Recommendation:
    """Recommend a method for a network by its activations, as `recommend`; without enough OOD images, pseudo-OOD images are made.

    The ID images must not calibrate or test anything afterwards: `learning_half` of a set.
    """
    ids = ids.select(slice(None, None, _step(len(ids.acts), MOST)))
    given = {"OOD images": ood} if isinstance(ood, Activations) else dict(ood or {})
    given = {name: acts[_distinct(acts)[0]] for name, acts in given.items()}
    enough = sum(map(len, given.values())) >= ENOUGH
    pseudo = {} if enough else pseudo_activations(network, ids, every=2 if learn is None else 1, progress=progress)
    acts, wrong = ids.acts, None
    if acts.labels is not None:
        # Labels that hardly ever agree with the network would mislead methods that are fitted on them.
        labels, predicted = acts.labels.numpy(), acts.logits.argmax(dim=1).numpy()
        wrong = check_accuracy(ids.name, labels, predicted, acts.logits.shape[1], any_accuracy=True)
        acts = replace(acts, labels=None) if wrong else acts
    searched = None if wrong else searched
    found = recommend(network.split.head, learn, acts, ood=given or None, pseudo=pseudo, searched=searched)
    return replace(found, findings=(Finding("labels", wrong, False), *found.findings)) if wrong else found


def learning_half(ids: ActivationsSet) -> tuple[ActivationsSet, Tensor]:
    """Return the images of a set on which a detector is chosen, and an order of all images whose first half contains them.

    They are the same for every command that gets the same images: a random half, of evenly picked ones if there are more than
    `2 * MOST`; an image that occurs twice counts once.
    """
    generator = torch.Generator().manual_seed(SEED)
    thin, rest = (rows[torch.randperm(len(rows), generator=generator)] for rows in _distinct(ids.acts))
    half = len(thin) // 2
    more = (len(thin) + len(rest)) // 2 - half
    order = torch.cat([thin[:half], rest[:more], thin[half:], rest[more:]])
    return ids.select(thin[:half].sort().values), order


def searched_alike(learn: Activations | None, ood: Mapping[str, Activations]) -> bool:
    """Return whether `recommend_for` compares methods on all of these OOD images, fitted on all of these training images."""
    distinct = all(len(_distinct(acts)[0]) == len(acts) for acts in ood.values())
    return learn is not None and len(learn) <= FITTED and sum(map(len, ood.values())) >= ENOUGH and distinct


def diagnose(
    model: str | ModelOptions,
    data: str | Path | None = None,
    ood: str | Path | None = None,
    *,
    train: str | Path | None = None,
    limit: int | None = 2 * MOST,
    progress: Progress | None = None,
) -> Recommendation:
    """Load a network, run ID and OOD images through it, and recommend a method; `calibrate` on the same images takes the same one.

    Without ID images, those of an embedded network are used; without those or without weights nothing is measured. At most
    `limit` images of each set but `train` are picked evenly.
    """
    progress = progress or Progress()
    options = model if isinstance(model, ModelOptions) else ModelOptions(model)
    place = data or (embedded.id_test(str(options.model)) if embedded.owns(str(options.model)) else None)
    if place is None or str(options.weights) == "none":
        multi_label = open_network(options).split.multi_label
        return _untested("ebo", MULTI_LABEL) if multi_label else _untested("fuse", UNMEASURED)
    known = open_argument("data", place)
    others = {name: open_argument(name, found) for name, found in {"ood": ood, "train": train}.items() if found}
    most = {"ood": limit, "train": None}
    images = known if isinstance(known, ImageSet) else None
    network = open_network(options, images=images)
    if images is not None:
        progress.note(f"preprocessing: {network.preprocessing.describe()}")
    ids = collect(network, known, name="ID images", limit=limit, distinct=True, progress=progress)
    acts = {
        name: collect(network, found, name=f"{name} images", limit=most[name], distinct=True, progress=progress).acts
        for name, found in others.items()
    }
    ids = learning_half(ids)[0]
    return recommend_for(network, ids, learn=acts.get("train"), ood=acts.get("ood"), progress=progress)


def scaling(
    network: Network, ids: ActivationsSet, *, ood: Activations | None = None, progress: Progress | None = None
) -> dict[float, float]:
    """Return the gain of SCALE over the energy score for each percentile, on OOD images or pseudo-OOD images."""
    ids = ids.select(slice(None, None, _step(len(ids.acts), MOST)))
    others = pseudo_activations(network, ids, progress=progress) if ood is None else {"OOD images": ood}
    return scale_gains(network.split.head, ids.acts, others)


def scale_gains(head: Head, ids: Activations, others: Mapping[str, Activations]) -> dict[float, float]:
    """Return the gain of SCALE over the energy score for each percentile, in logits of the AUROC."""
    detectors = [build("ebo"), *(build("scale", percentile=p) for p in PERCENTILES)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IdnessWarning)
        fit_many(detectors, head)
        values = _mean_logits(detectors, ids, others)
    return {p: value - values[0] for p, value in zip(PERCENTILES, values[1:], strict=True)}


def scale_percentile(gains: Mapping[float, float]) -> float | None:
    """Return the percentile at which SCALE gains most; `None` if it helps at none."""
    best = max(gains, key=lambda p: gains[p])
    return best if gains[best] > HELPS else None


def harmed_by_scaling(gains: Mapping[float, float], percentile: float) -> str | None:
    """Return a warning if SCALE at a percentile is worse than the energy score, else `None`."""
    near = min(gains, key=lambda p: abs(p - percentile))
    if gains[near] >= HARMS:
        return None
    return (
        f"Scale: percentile {percentile:g} harms this network on pseudo-OOD images"
        f" ({gains[near]:+.2f} logits of AUROC relative to the energy score); use auto"
    )


def chosen_row(aurocs: Mapping[str, float | None], lead: float = CLEAR_LEAD) -> str | None:
    """Return the row to use by its AUROC: `fuse` unless another leads by this many logits; `None` if there are none."""
    known = {row: _clipped_logit(value) for row, value in aurocs.items() if value is not None}
    best = max(known, key=lambda row: known[row], default=None)
    return "fuse" if best and known.get("fuse", -np.inf) >= known[best] - lead else best


def mean_logit(ids: Scores, others: Mapping[str, Scores]) -> float:
    """Return the mean logit of the AUROCs of ID images against each kind of other images."""
    return float(np.mean([_clipped_logit(auroc(ids, scores)) for scores in others.values()]))


def _clipped_logit(value: float) -> float:
    return logit(float(np.clip(value, *CLIP)))


def sign_of_features(acts: Activations) -> Finding:
    """Return whether features are non-negative, as the scale ratio and several methods require."""
    if not is_signed(acts):
        return Finding("features", "non-negative, as the scale ratio requires", True)
    share, lowest = float((acts.features < 0).float().mean()), float(acts.features.min())
    text = f"{100 * share:.0f} % are negative (down to {lowest:.2g}); methods that require non-negative features do not apply"
    return Finding("features", text, False)


def _mean_logits(detectors: list[Detector], ids: Activations, others: Mapping[str, Activations]) -> list[float]:
    found = zip(*(score_many(detectors, acts) for acts in (ids, *others.values())), strict=True)
    return [mean_logit(scores, dict(zip(others, rest, strict=True))) for scores, *rest in found]


def _untested(row: str, reason: str, findings: Sequence[Finding] = ()) -> Recommendation:
    return Recommendation(build(row), row, f"Recommended: {row}. {reason}", findings=tuple(findings))


def _compare(
    candidates: Mapping[str, Detector],
    head: Head,
    learn: Activations,
    ids: Activations,
    others: Mapping[str, Activations],
    searched: Mapping[str, search.Choice | None] | None,
    *,
    real: bool,
) -> Recommendation:
    """Recommend by AUROCs on real OOD images, with the options that a search finds best, or on pseudo-OOD images, at defaults."""
    detectors: dict[str, Detector] = {}
    failed: dict[str, str] = {}
    if real:
        if searched is None:
            wanted = {name: search.Row(detector) for name, detector in candidates.items()}
            found, failed = search.choose(wanted, head, learn, ids, others)
        else:
            found = {name: choice for name, choice in searched.items() if choice and name in candidates}
        values = {name: choice.auroc for name, choice in found.items() if choice.auroc is not None}
        detectors = {name: found[name].detector for name in values}
    else:
        for name, detector in candidates.items():
            try:
                if not detector.fitted:
                    detector.fit(head, learn, val=None if detector.remembers else ids)
                detectors[name] = detector
            except IdnessError as error:
                failed[name] = str(error)
        values = dict(zip(detectors, map(expit, _mean_logits(list(detectors.values()), ids, others)), strict=True))
    row = chosen_row(values, CLEAR_LEAD if real else LEAD) or "ebo"
    percents = {name: 100 * value for name, value in values.items()}
    if not real and row == "fuse" and _clipped_logit(values["fuse"]) < _clipped_logit(values["ebo"]) + FUSE_LEAD:
        row = "ebo"
    ranked = sorted(values, key=lambda name: (-values[name], name != row))
    texts = {name: short(detectors[name]) for name in ranked}
    if real:
        settings = sum(len(choice.tried) for choice in found.values())
        best = "the highest" if row == ranked[0] else "not clearly below any"
        why = f"(AUROC {percents[row]:.2f} % on OOD validation images), {best} of {settings} settings of {len(values)} methods."
    else:
        other = "ebo" if row == "fuse" else "fuse"
        than = f"that of {'the energy score' if other == 'ebo' else other} is {percents[other]:.1f} %"
        why = f"Its AUROC on pseudo-OOD images made of {len(ids):,} ID images is {percents[row]:.1f} %; {than}."
    rival = next((name for name in ranked if detectors[name].name != detectors[row].name), row)
    lead = percents[row] - percents[rival]
    risk = f"Runner-up: {texts[rival]}, {lead:.2f} points behind."
    if lead < 0:
        risk = f"{texts[rival]} is {-lead:.2f} points ahead, which is not enough to prefer it."
    return Recommendation(
        detectors[row],
        row,
        f"Recommended: {texts[row]}{' ' if real else '. '}{why}",
        risk if rival != row else "",
        aurocs={texts[name]: values[name] for name in ranked},
        left_out=tuple(f"{name}: {reason}" for name, reason in failed.items()),
    )


def _step(count: int, most: int) -> int:
    """Return the step at which at most `most` of `count` images are picked."""
    return max(1, -(-count // most))


def _distinct(acts: Activations) -> tuple[Tensor, Tensor]:
    """Return the rows of distinct images: at most `2 * MOST` that are evenly picked, and all others."""
    even = torch.ones(len(acts), dtype=torch.bool)
    if acts.index is not None and len(acts):
        even = acts.index % _step(int(acts.index.max()) + 1, 2 * MOST) == 0
    order = torch.cat([even.nonzero().flatten(), (~even).nonzero().flatten()])
    if acts.hashes is not None:
        _, first = np.unique(acts.hashes[order, :EXACT].numpy(), axis=0, return_index=True)
        order = order[np.sort(first)]
    return order[even[order]], order[~even[order]]


def _measurements(found: Recommendation, gains: Mapping[float, float], where: str) -> list[Finding]:
    """Return whether SCALE helps, and the best methods."""
    best = max(gains, key=lambda p: gains[p])
    values = ", ".join(f"{gains[p]:+.2f} at {p:g}" for p in gains if p in (65.0, 85.0, 95.0, best))
    good = True if gains[best] > HELPS else False if gains[85.0] < HARMS else None
    verdict = {True: "helps", False: "harms", None: "makes little difference"}[good]
    text = f"SCALE {verdict} on {where}; difference to the energy score in logits of the AUROC: {values}"
    methods = ", ".join(f"{name} {100 * value:.1f}" for name, value in list(found.aurocs.items())[:5])
    return [Finding("scaling", text, good), Finding("methods", f"AUROC on {where}, best first: {methods}")]

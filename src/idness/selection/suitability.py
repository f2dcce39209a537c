"""Says what to use on a network, whether SCALE suits it, and what both rest on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

import torch

from idness.activations.prerelu import Rectifier
from idness.core.checks import check_acts
from idness.core.types import Activations, Head
from idness.core.wording import sentence
from idness.detectors.kernels import kept_count
from idness.detectors.registry import short
from idness.networks.split import SplitModel
from idness.selection.auto import HARMS, HELPS, LABELS, Recommendation, recommend, scale_gains

NEGATIVE = 1e-6
"""Below minus this share of the largest feature, a feature is negative and not rounding."""
NARROW = 128
"""Features below which the ratio rests on too few activations: at 64, p=85 leaves 10, and SCALE there was measured 20
points below the plain energy on a CIFAR-10 ResNet-56."""
UNTRAINED = 0.05
"""A mean largest probability that is less than this share of the way from 1/C to 1 is that of a network that has learned
nothing: random weights give 0.00 to 0.02, trained ImageNet networks with strong label smoothing still 0.3."""
ENOUGH = 30
"""ID and OOD images needed for more than the structure; with fewer, an AUROC is uncertain by more than ten points."""
SAFE = "fuse"
"""What is used where nothing can be measured."""
SHOWN = 5
"""How many methods a finding lists."""


@dataclass(frozen=True)
class Finding:
    """Tells what was found of one thing, in plain words and with the number behind it; `good` says whether it speaks for SCALE."""

    name: str
    text: str
    good: bool | None = None
    value: float | None = None


@dataclass(frozen=True)
class Diagnosis:
    """Holds what the doctor says of a network: which method to use, why, at what risk, and the findings that it rests on.

    `suits` says whether SCALE helps, None where that could not be measured, and `percentiles` the lowest and highest at which
    it does; `aurocs` and `left_out` are those of the `Recommendation`.
    """

    method: str
    why: str
    risk: str = ""
    suits: bool | None = None
    findings: tuple[Finding, ...] = ()
    percentiles: tuple[float, float] | None = None
    aurocs: Mapping[str, float] = dataclasses.field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Give the whole as plain values."""
        return dataclasses.asdict(self)

    def _repr_html_(self) -> str:
        signs = {True: "+", False: "−", None: "·"}
        rows = "".join(
            f"<tr><td>{signs[finding.good]}</td><th>{escape(finding.name)}</th><td>{escape(finding.text)}</td></tr>"
            for finding in self.findings
        )
        return f"<p><b>{escape(self.why)}</b> {escape(self.risk)}</p><table>{rows}</table>"


def examine(
    split: SplitModel | Head,
    acts: Activations,
    ood: Activations | None = None,
    *,
    learn: Activations | None = None,
    pseudo: Mapping[str, Activations] | None = None,
    rectifier: Rectifier | None = None,
) -> Diagnosis:
    """Examine a network by its activations on ID images, and on OOD images or stand-ins for them.

    Args:
        split: the network, or its head alone.
        acts: activations of ID images, with labels where known.
        ood: activations of OOD images; what is said then rests on them.
        learn: activations of other ID images, for methods that learn; every other one of `acts` if not given.
        pseudo: activations of stand-ins for OOD images by kind, made of ID images outside `learn`.
        rectifier: the final ReLU, where one was found.
    """
    head = split if isinstance(split, Head) else split.head
    check_acts("examine", "acts", acts, head)
    if ood is not None:
        check_acts("examine", "ood", ood, head)
    findings = [*structure(head, acts, rectifier), _training(acts)]
    real = {"OOD images": ood} if ood is not None and len(ood) >= ENOUGH else None
    if head.multi_label and real is None:
        return Diagnosis("ebo", f"{sentence(LABELS)}.", findings=tuple(findings[:-1]))
    if ood is not None and real is None:
        findings.insert(-1, Finding("OOD images", f"{len(ood)} are too few to choose by, which needs {ENOUGH}"))
    if findings[-1].good is False or len(acts) < ENOUGH:
        reason = f"which is safe on every network that was tried; nothing was measured here: {findings[-1].text}"
        return Diagnosis(SAFE, f"Use {SAFE}, {reason}.", findings=tuple(findings))
    teach, ids = (acts[::2], acts[1::2]) if learn is None else (learn, acts)
    found = recommend(head, teach, ids, ood=real, pseudo=pseudo)
    gains = scale_gains(head, ids, real or pseudo or {}) if real or pseudo else {}
    findings += [*_scaling(gains, real is not None), *_methods(found)]
    helpful = [p for p, gain in gains.items() if gain > HELPS]
    return Diagnosis(
        short(found.detector),
        f"{sentence(found.why)}.",
        found.risk and f"{sentence(found.risk)}.",
        bool(helpful) if gains else None,
        tuple(findings),
        (min(helpful), max(helpful)) if helpful else None,
        found.aurocs,
        found.left_out,
    )


def structure(head: Head, acts: Activations, rectifier: Rectifier | None) -> list[Finding]:
    """Look at what needs no OOD images: the features' sign, what they come out of, and their number."""
    width = Finding(
        "width",
        f"{head.width} features, {head.classes} classes; p = 85 leaves the {kept_count(head.width, 85)} largest",
        head.width >= NARROW,
        head.width,
    )
    signed = _signed(acts)
    if rectifier is not None:
        return [signed, Finding("final layer", f"the features come out of {rectifier}", True), width]
    if signed.good is False:
        return [signed, Finding("final layer", "no ReLU stands in front of the features", False), width]
    return [signed, width]


def _signed(acts: Activations) -> Finding:
    lowest, largest = float(acts.features.min()), float(acts.features.abs().max())
    share = float((acts.features < -NEGATIVE * largest).float().mean())
    if share > 0:
        text = f"{100 * share:.0f} % of the features are negative (down to {lowest:.2g}): sums of them mean nothing"
        return Finding("features", text, False, share)
    zeros = float((acts.features == 0).all(dim=1).float().mean())
    if zeros > 0.01:
        return Finding("features", f"non-negative, but {100 * zeros:.0f} % of the images have none at all", None, zeros)
    return Finding("features", "non-negative, as the scale ratio needs", True, 0.0)


def _training(acts: Activations) -> Finding:
    confidence = float(torch.softmax(acts.logits, dim=1).amax(dim=1).mean())
    text = f"mean largest probability {confidence:.2f} on the ID images"
    chance = 1 / acts.logits.shape[1]
    if len(acts) < ENOUGH:
        return Finding("training", f"{len(acts)} images are too few to judge more than the structure")
    if confidence - chance < UNTRAINED * (1 - chance):
        return Finding("training", f"{text}: the network looks untrained", False, confidence)
    if acts.labels is not None:
        text += f", accuracy {100 * float((acts.logits.argmax(dim=1) == acts.labels).float().mean()):.1f} %"
    return Finding("training", text, None, confidence)


def _scaling(gains: Mapping[float, float], real: bool) -> list[Finding]:
    """Say what SCALE gains over the energy score, in the measure that methods are ranked by."""
    if not gains:
        return []
    where = "your OOD images" if real else "stand-ins for OOD images"
    best = max(gains, key=lambda p: gains[p])
    listed = ", ".join(f"{gains[p]:+.2f} at {p:g}" for p in gains if p in (65.0, 85.0, 95.0, best))
    verdict = "helps" if gains[best] > HELPS else "harms" if gains[85.0] < HARMS else "makes little difference"
    text = f"SCALE {verdict} on {where}: its AUROC in logits against that of the energy score is {listed}"
    return [Finding("scaling", text, {"helps": True, "harms": False}.get(verdict), gains[best])]


def _methods(found: Recommendation) -> list[Finding]:
    if not found.aurocs:
        return []
    shown = list(found.aurocs.items())[:SHOWN]
    text = ", ".join(f"{name} {100 * value:.1f}" for name, value in shown)
    where = "your OOD images" if found.measured_on == "ood" else "stand-ins for OOD images"
    return [Finding("methods", f"AUROC on {where}, best first: {text}")]


def harmed_by_scaling(gains: Mapping[float, float], percentile: float) -> str | None:
    """Give the warning for a network on which SCALE at a percentile does worse than the plain energy; none where it does not."""
    near = min(gains, key=lambda p: abs(p - percentile))
    if gains[near] >= HARMS:
        return None
    return (
        f"Scale: at percentile {percentile:g} it harms this network, as far as stand-ins for OOD images tell"
        f" ({gains[near]:+.2f} logits of AUROC against the energy score); use auto"
    )

"""Says whether a network suits SCALE, from what its activations show, and what to use where it does not.

SCALE is no blind default: it leads on ImageNet ResNets and on DenseNet, is at chance on transformers, and is below plain
softmax on some CIFAR networks. With OOD images the verdict is measured on them; without, on ID images whose tiles were
shuffled. With neither, only the structure is judged (does a ReLU leave the features non-negative?), and a method that
cannot go wrong is recommended.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import torch

from idness.activations.prerelu import Rectifier
from idness.core.checks import check_acts
from idness.core.types import Activations, Head
from idness.detectors.kernels import kept_count, scale_ratios
from idness.detectors.readouts import energy
from idness.networks.split import SplitModel
from idness.selection.contest import Contest, contest

PERCENTILES = (65.0, 70.0, 75.0, 80.0, 85.0, 90.0, 95.0)
NEGATIVE = 1e-6
"""Below minus this share of the largest feature, a feature is negative and not rounding."""
NARROW = 128
"""Features below which the ratio rests on too few activations: at 64, p=85 leaves 10, and SCALE there was measured 20
points below the plain energy on a CIFAR-10 ResNet-56."""
LITTLE = 0.1
"""SCALE's score is about exp(r) E, so its logarithm is r + log E: where r spreads less than this share of log E over the ID
images, it has no say. More tells nothing by itself: the quotient is .52 at the best percentile of the CIFAR-10 DenseNet-101
and 1.04 at that of ImageNet's MobileNetV2, and .75 at 85 on the embedded network, which loses by scaling."""
UNTRAINED = 0.05
"""A mean largest probability that is less than this share of the way from 1/C to 1 is that of a network that has learned
nothing: random weights give 0.00 to 0.02, trained ImageNet networks with strong label smoothing still 0.3."""
ENOUGH = 30
"""ID and OOD images needed for more than the structure; with fewer, an AUROC is uncertain by more than ten points."""
SAFE = "gen"
"""What is used where SCALE is not: it reads the logits alone, and on the benchmarks of the field it is at or above softmax and
energy."""
FLIPS = 0.02
"""Share of ID images whose class scaling may change before it is worth a warning; the guard keeps the plain class."""


@dataclass(frozen=True)
class Finding:
    """Says what was found about one property of a network, and whether it speaks for SCALE.

    Args:
        name: what.
        text: what was found, in plain words.
        good: whether it speaks for SCALE; None where it neither does nor does not.
        value: the number behind it, where there is one.
    """

    name: str
    text: str
    good: bool | None = None
    value: float | None = None


@dataclass(frozen=True)
class Diagnosis:
    """Says whether SCALE suits a network, what to use, and what that rests on.

    Args:
        suits: whether SCALE suits it.
        method: what to use, as the command line takes it.
        why: the verdict in plain words.
        findings: what it rests on.
        percentiles: the range of p that looks useful, where there is one.
    """

    suits: bool
    method: str
    why: str
    findings: tuple[Finding, ...]
    percentiles: tuple[float, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Give the whole as plain values."""
        return dataclasses.asdict(self)

    def _repr_html_(self) -> str:
        signs = {True: "+", False: "−", None: "·"}
        rows = "".join(
            f"<tr><td>{signs[finding.good]}</td><th>{escape(finding.name)}</th><td>{escape(finding.text)}</td></tr>"
            for finding in self.findings
        )
        return f"<p><b>{escape(self.why)}</b><br>Use <code>{escape(self.method)}</code>.</p><table>{rows}</table>"


def examine(
    split: SplitModel | Head,
    acts: Activations,
    ood: Activations | None = None,
    *,
    rectifier: Rectifier | None = None,
    shuffled: Activations | None = None,
) -> Diagnosis:
    """Examine a network by its activations on ID images and, if there are any, on OOD images.

    Args:
        split: the network, or its head alone.
        acts: activations of ID images, with labels where known.
        ood: activations of OOD images; they make the verdict a measured one.
        rectifier: the final ReLU, where one was found.
        shuffled: activations of ID images with shuffled tiles, which stand in for OOD images where there are none.
    """
    head = split if isinstance(split, Head) else split.head
    check_acts("examine", "acts", acts, head)
    if ood is not None:
        check_acts("examine", "ood", ood, head)
    signed = _signed(acts)
    training, untrained = _training(acts)
    balances = {} if signed.good is False else balance(acts, PERCENTILES)
    findings = [
        signed,
        *_structure(rectifier, signed),
        _width(head),
        training,
        *_spread(balances),
    ]
    stand_in = ood if ood is not None and min(len(acts), len(ood)) >= ENOUGH else shuffled
    measured = None
    if stand_in is not None and min(len(acts), len(stand_in)) >= ENOUGH:
        measured = contest(head, acts, stand_in, () if signed.good is False else PERCENTILES)
        where = "your OOD images" if stand_in is ood else "shuffled ID images"
        findings.append(Finding(f"measured on {where}", measured.text(), measured.helps, measured.gain))
    suits, method, why = _verdict(findings, measured, own=stand_in is ood, untrained=untrained)
    if suits and not untrained:
        findings.append(_flips(head, acts, method))
    return Diagnosis(suits, method, why, tuple(findings), measured.useful if measured and suits else None)


def balance(acts: Activations, percentiles: Sequence[float]) -> dict[float, float]:
    """Compute, for each percentile, the spread of r over ID images as a share of the spread of the log energy."""
    energies = energy(acts.logits).double()
    positive = energies > 0
    logs = energies[positive].log()
    spread = float(logs.std()) if len(logs) > 1 else 0.0
    ratios = scale_ratios(acts.features[positive], percentiles) if bool(positive.any()) else []
    return {
        p: float(r.double().std()) / spread if spread > 0 else float("inf")
        for p, r in zip(percentiles, ratios, strict=False)
        if len(r) > 1
    }


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


def _structure(rectifier: Rectifier | None, signed: Finding) -> list[Finding]:
    if rectifier is not None:
        return [Finding("final layer", f"the features come out of {rectifier}", True)]
    if signed.good is False:
        return [Finding("final layer", "no ReLU stands in front of the features", False)]
    return []


def _width(head: Head) -> Finding:
    text = f"{head.width} features, {head.classes} classes; p = 85 leaves the {kept_count(head.width, 85)} largest"
    return Finding("width", text, head.width >= NARROW, head.width)


def _training(acts: Activations) -> tuple[Finding, bool]:
    confidence = float(torch.softmax(acts.logits, dim=1).amax(dim=1).mean())
    text = f"mean largest probability {confidence:.2f} on the ID images"
    chance = 1 / acts.logits.shape[1]
    if len(acts) < ENOUGH:
        return Finding("training", f"{len(acts)} images are too few to judge more than the structure", None, None), True
    if confidence - chance < UNTRAINED * (1 - chance):
        text += ": the network looks untrained, so only its structure is judged"
        return Finding("training", text, None, confidence), True
    if acts.labels is not None:
        text += f", accuracy {100 * float((acts.logits.argmax(dim=1) == acts.labels).float().mean()):.1f} %"
    return Finding("training", text, None, confidence), False


def _spread(balances: dict[float, float]) -> list[Finding]:
    if not balances:
        return []
    listed = ", ".join(f"{value:.2f} at {p:g}" for p, value in balances.items() if p in (65.0, 75.0, 85.0, 95.0))
    text = f"spread of r as a share of that of the log energy: {listed}"
    if max(balances.values()) < LITTLE:
        return [Finding("spread of r", f"{text}; scaling would change next to nothing", False, balances.get(85.0))]
    return [Finding("spread of r", text, None, balances.get(85.0))]


def _flips(head: Head, acts: Activations, method: str) -> Finding:
    from idness.detectors.detector import Enhancer
    from idness.detectors.registry import parse

    detector = parse(method).fit(head)
    assert isinstance(detector, Enhancer)
    changed = float((detector.shaped_logits(acts).argmax(dim=1) != acts.logits.argmax(dim=1)).float().mean())
    text = f"scaling leaves the bias as it is and so changes the class of {100 * changed:.1f} % of the ID images"
    return Finding("bias flips", text, changed <= FLIPS, changed)


def _verdict(
    findings: Sequence[Finding], measured: Contest | None, *, own: bool, untrained: bool
) -> tuple[bool, str, str]:
    by_name = {finding.name: finding for finding in findings}
    features, width = by_name["features"], by_name["width"]
    if features.good is False:
        why = f"SCALE does not suit this network: {features.text}."
        if measured and own:
            return False, measured.rival, why
        return False, SAFE, f"{why} GEN needs only the logits; with labelled training images rmds is worth a try."
    if untrained:
        return (
            True,
            "scale",
            "By its structure SCALE suits this network; trained weights and images of what it knows would say more.",
        )
    if measured and own:
        return _on_own(measured)
    if measured:
        return _on_shuffled(measured, narrow=width.good is False)
    return (
        False,
        SAFE,
        "Nothing shows that SCALE would help this network: its structure allows it, but only images can tell.",
    )


def _on_own(found: Contest) -> tuple[bool, str, str]:
    assert found.scale is not None
    ours, theirs = 100 * found.aurocs[found.scale], 100 * found.aurocs[found.rival]
    if not found.suits:
        why = f"SCALE does not suit this network on these images: AUROC {ours:.1f} at best, {found.rival} has {theirs:.1f}."
        return False, found.rival, why
    if ours > theirs:
        why = f"SCALE suits this network: AUROC {ours:.1f} on these images, the best other ({found.rival}) has {theirs:.1f}."
    else:
        why = f"SCALE suits this network: AUROC {ours:.1f}, on a par with {found.rival} ({theirs:.1f}) on these images."
    return True, found.scale, why


def _on_shuffled(found: Contest, *, narrow: bool) -> tuple[bool, str, str]:
    assert found.scale is not None
    change = f"AUROC {100 * found.gain:+.1f} points over the plain energy on your images with shuffled tiles"
    if not found.helps:
        return False, SAFE, f"SCALE does not suit this network, as far as ID images can tell: at best {change}."
    if narrow:
        return False, SAFE, f"SCALE is a risk here: {change}, but with so few features its ratio rests on a handful."
    why = f"SCALE suits this network, as far as ID images can tell: {change}; some OOD images would make it sure."
    return True, found.scale, why

"""Chooses a method for a network: by a measured comparison where OOD images are given, else by what the network is like."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from idness.core.errors import IdnessWarning, InputError
from idness.core.types import Activations, Head
from idness.detectors.detector import Detector
from idness.detectors.registry import parse
from idness.networks.split import SplitModel
from idness.selection import search


@dataclass(frozen=True)
class Recommendation:
    """Names the detector to use, not fitted yet, and says why.

    Args:
        detector: the detector with its options.
        why: the reason, in one or two sentences.
        left_out: methods that could not be tried, each with the reason.
    """

    detector: Detector
    why: str
    left_out: tuple[str, ...] = ()


def choose(split: SplitModel, acts: Activations, ood: Activations | None = None) -> Recommendation:
    """Choose a method and its options.

    Args:
        split: the network.
        acts: activations of in-distribution images, in random order; half of them learn, half compare.
        ood: activations of OOD images that are no test set.
    """
    if ood is not None:
        half = len(acts) // 2
        return compare(split.head, acts[:half], acts[half:], ood)
    from idness.selection.suitability import examine

    found = examine(split, acts)
    return Recommendation(parse(found.method), f"{found.why} (no OOD images were given, so nothing was measured)")


def compare(head: Head, learn: Activations, ids: Activations, oods: Activations) -> Recommendation:
    """Score every method at every option, and take the one that separates best; the first best wins."""
    with warnings.catch_warnings():
        # That a method does not suit the features shows in its measured place; no need to say so for each.
        warnings.simplefilter("ignore", IdnessWarning)
        found, failed = search.choose(search.wanted_rows(), head, learn, ids, {"OOD": oods})
    ranked = sorted(found.values(), key=lambda item: -(item.auroc or 0.0))
    if not ranked:
        raise InputError(f"auto: no method could be tried; the first reason: {next(iter(failed.values()))}")
    best = ranked[0]
    rival = next((item for item in ranked if item.detector.name != best.detector.name), None)
    against = f", ahead of {rival.detector.label()} with {100 * (rival.auroc or 0):.2f} %" if rival else ""
    why = (
        f"{best.detector.label()} separates best: AUROC {100 * (best.auroc or 0):.2f} % between {len(ids):,} ID"
        f" and {len(oods):,} OOD images{against}; {sum(len(item.tried) for item in ranked)} settings were tried"
    )
    left_out = tuple(f"{name}: {reason}" for name, reason in failed.items())
    return Recommendation(best.detector.variants({})[0], why, left_out)

"""Lets SCALE and the methods that could replace it compete on a user's own ID and OOD images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from idness.detector import Detector, fit_many, score_many
from idness.intervals import compare_auroc
from idness.metrics import auroc
from idness.registry import build
from idness.types import Activations, Head

MOST = 5_000
"""ID images used on either side of the split; more make no verdict surer."""
ALPHA = 0.05


@dataclass(frozen=True)
class Contest:
    """Is the outcome: AUROC by method, the best of all, and whether SCALE is on a par with it.

    Args:
        aurocs: by method as the command line takes it, best first.
        scale: the best SCALE, None where SCALE did not run.
        suits: whether SCALE is best, or not significantly below the best.
        p_value: of the paired test of SCALE against the best other.
    """

    aurocs: dict[str, float]
    scale: str | None
    suits: bool
    p_value: float

    @property
    def best(self) -> str:
        """The method to use: SCALE where it suits, else the best."""
        return self.scale if self.suits and self.scale else next(name for name in self.aurocs if name != self.scale)

    @property
    def best_auroc(self) -> float:
        """AUROC of the method to use."""
        return self.aurocs[self.best]

    def text(self) -> str:
        """List the AUROCs."""
        return "AUROC " + ", ".join(f"{name} {100 * value:.1f}" for name, value in self.aurocs.items())

    def why(self) -> str:
        """Say the verdict in plain words."""
        rival = next(name for name in self.aurocs if name != self.scale)
        assert self.scale is not None
        ours, theirs = 100 * self.aurocs[self.scale], 100 * self.aurocs[rival]
        if not self.suits:
            return (
                f"SCALE does not suit this network on these images: AUROC {ours:.1f} at best, {rival} has {theirs:.1f}."
            )
        if ours > theirs and self.p_value < ALPHA:
            return f"SCALE suits this network: AUROC {ours:.1f} on these images, the best other ({rival}) has {theirs:.1f}."
        return f"SCALE suits this network: AUROC {ours:.1f}, on a par with {rival} ({theirs:.1f}) on these images."


def contest(head: Head, acts: Activations, ood: Activations, percentiles: Sequence[float]) -> Contest:
    """Score held-out ID images against OOD images with SCALE and its rivals.

    One half of the ID images is for those that learn; all are judged on the other half.
    """
    order = torch.randperm(len(acts), generator=torch.Generator().manual_seed(0))
    half = min(len(acts) // 2, MOST)
    train, test = acts[order[:half]], acts[order[half : 2 * half]]
    rivals: list[Detector] = [build("msp"), build("ebo"), build("gen"), build("knn", k=min(10, half))]
    if train.labels is not None and half >= 4 * head.width:
        rivals.append(build("rmds"))
    scales = [build("scale", percentile=p) for p in percentiles]
    detectors = [*rivals, *scales]
    fit_many(detectors, head, train)
    scores = zip(score_many(detectors, test), score_many(detectors, ood), strict=True)
    pairs = dict(zip(map(_spec, detectors), scores, strict=True))
    aurocs = {name: auroc(*pair) for name, pair in pairs.items()}
    best_scale = max((_spec(d) for d in scales), key=aurocs.__getitem__, default=None)
    kept = {name: value for name, value in aurocs.items() if not name.startswith("scale") or name == best_scale}
    ranked = dict(sorted(kept.items(), key=lambda item: -item[1]))
    if best_scale is None:
        return Contest(ranked, None, False, 1.0)
    rival = next(name for name in ranked if name != best_scale)
    p_value = _p_value(pairs[best_scale], pairs[rival])
    suits = ranked[best_scale] >= ranked[rival] or p_value >= ALPHA
    return Contest(ranked, best_scale, suits, p_value)


def _spec(detector: Detector) -> str:
    default = build(detector.name).options()
    changed = {key: value for key, value in detector.options().items() if value != default[key] or key == "percentile"}
    inner = ", ".join(
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in changed.items()
    )
    return f"{detector.name}({inner})" if inner else detector.name


def _p_value(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> float:
    return float(compare_auroc(first[0], first[1], second[0], second[1]).p_value)

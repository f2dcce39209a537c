"""Lets SCALE and the methods that could replace it compete on ID and OOD images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from idness.core.types import Activations, Head
from idness.detectors.detector import Detector, fit_many, score_many
from idness.detectors.registry import build
from idness.intervals import compare_auroc
from idness.metrics import auroc

MOST = 5_000
"""ID images used on either side of the split; more make no verdict surer."""
ALPHA = 0.05


@dataclass(frozen=True)
class Contest:
    """Tells who won, and by how much SCALE is above the plain energy and below its best rival.

    Args:
        aurocs: by method as the command line takes it, best first; of SCALE only its best percentile.
        sweep: AUROC of SCALE by percentile; empty where SCALE did not run.
        scale: the best SCALE, none where SCALE did not run.
        above_plain: p-value of the paired test of SCALE against the plain energy.
        below_best: p-value of the paired test of SCALE against the best other method.
    """

    aurocs: dict[str, float]
    sweep: dict[float, float]
    scale: str | None = None
    above_plain: float = 1.0
    below_best: float = 1.0

    @property
    def rival(self) -> str:
        """The best method other than SCALE."""
        return next(name for name in self.aurocs if name != self.scale)

    @property
    def gain(self) -> float:
        """How much the best SCALE is above the plain energy."""
        return 0.0 if self.scale is None else self.aurocs[self.scale] - self.aurocs["ebo"]

    @property
    def helps(self) -> bool:
        """Whether scaling separates significantly better than the plain energy."""
        return self.gain > 0 and self.above_plain < ALPHA

    @property
    def suits(self) -> bool:
        """Whether SCALE is above the plain energy, and best or not significantly below the best."""
        if self.scale is None or self.gain <= 0:
            return False
        return self.aurocs[self.scale] >= self.aurocs[self.rival] or self.below_best >= ALPHA

    @property
    def useful(self) -> tuple[float, float] | None:
        """The lowest and highest percentile at which SCALE is above the plain energy."""
        better = [p for p, value in self.sweep.items() if value > self.aurocs["ebo"]]
        return (min(better), max(better)) if better else None

    def text(self) -> str:
        """List the AUROCs."""
        return "AUROC " + ", ".join(f"{name} {100 * value:.1f}" for name, value in self.aurocs.items())


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
    scales = {float(p): build("scale", percentile=p) for p in percentiles}
    detectors = [*rivals, *scales.values()]
    fit_many(detectors, head, train)
    scores = zip(score_many(detectors, test), score_many(detectors, ood), strict=True)
    pairs = dict(zip(map(_spec, detectors), scores, strict=True))
    aurocs = {name: auroc(*pair) for name, pair in pairs.items()}
    sweep = {p: aurocs[_spec(detector)] for p, detector in scales.items()}
    best = max(map(_spec, scales.values()), key=aurocs.__getitem__, default=None)
    kept = {name: value for name, value in aurocs.items() if not name.startswith("scale") or name == best}
    ranked = dict(sorted(kept.items(), key=lambda item: -item[1]))
    if best is None:
        return Contest(ranked, sweep)
    rival = next(name for name in ranked if name != best)
    tests = [compare_auroc(*pairs[best], *pairs[other]).p_value for other in ("ebo", rival)]
    return Contest(ranked, sweep, best, *tests)


def _spec(detector: Detector) -> str:
    """Write a detector as short as the command line takes it."""
    default = build(detector.name).options()
    changed = {key: value for key, value in detector.options().items() if value != default[key] or key == "percentile"}
    inner = ", ".join(f"{key}={_plain(value)}" for key, value in changed.items())
    return f"{detector.name}({inner})" if inner else detector.name


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)

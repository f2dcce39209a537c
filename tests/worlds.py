"""Small worlds to test on: a network's activations on ID images and on OOD images."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from idness.core.types import Activations, Head
from idness.detectors.detector import Detector

WIDTH, CLASSES = 64, 5


@dataclass(frozen=True)
class World:
    head: Head
    train: Activations
    val: Activations
    test: Activations
    ood: Activations

    def seen_by(self, detector: Detector) -> World:
        """Give the same world as a detector sees it: a second time where it looks twice."""
        parts = {name: seen_by(detector, getattr(self, name), self.head) for name in ("train", "val", "test", "ood")}
        return replace(self, **parts)


def seen_by(detector: Detector, acts: Activations, head: Head) -> Activations:
    """Let a detector that changes images change these, whose pixels are their features: the network is the head alone."""
    if detector.input_edit is None:
        return acts
    changed = detector.input_edit.perturb(lambda images: (images, head(images)), acts.features)
    return replace(acts, edited=Activations(changed, head(changed)))


def make_world(
    seed: int = 0, width: int = WIDTH, classes: int = CLASSES, count: int = 200, signed: bool = False
) -> World:
    """Rectified Gaussian features around class patterns; OOD images show these weakly, and one of their own."""
    rng = torch.Generator().manual_seed(seed)
    patterns = torch.randn(classes, width, generator=rng)
    head = Head(patterns / width**0.5, torch.randn(classes, generator=rng) * 0.1)

    def acts(strength: float, number: int, more: Tensor | float = 0.0) -> Activations:
        labels = torch.arange(number) % classes
        raw = 0.3 + strength * patterns[labels] + more + 0.7 * torch.randn(number, width, generator=rng)
        features = raw if signed else raw.clamp(min=0)
        return Activations(features, head(features), labels)

    train, val, test = acts(1.0, 3 * count), acts(1.0, count), acts(1.0, count)
    return World(head, train, val, test, acts(0.2, count, 0.6 * torch.randn(width, generator=rng)))

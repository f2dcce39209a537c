"""Small worlds of rectified Gaussians."""

from __future__ import annotations

from typing import NamedTuple

import torch

from idness.core.types import Activations, Head

CLASSES, WIDTH, IMAGES = 8, 256, 400


class World(NamedTuple):
    head: Head
    inside: Activations
    outside: Activations


def rectified_world() -> World:
    """Rectified Gaussians with class-wise means: what the paper assumes, with labels that the head can read."""
    generator = torch.Generator().manual_seed(7)
    centres, labels = torch.randn(CLASSES, WIDTH, generator=generator), torch.arange(IMAGES) % CLASSES
    inside = (torch.randn(IMAGES, WIDTH, generator=generator) + 0.5 + 0.6 * centres[labels]).clamp(min=0)
    outside = torch.randn(IMAGES, WIDTH, generator=generator).clamp(min=0)
    head = Head(0.06 * centres, torch.linspace(-0.3, 0.3, CLASSES))
    return World(head, Activations(inside, head(inside), labels), Activations(outside, head(outside)))


def ratio_world(*, peaked: bool) -> World:
    """ID and OOD of nearly the same energies; OOD activations are concentrated (small r) or level (large r)."""
    generator = torch.Generator().manual_seed(3)
    centres, labels = torch.randn(CLASSES, WIDTH, generator=generator), torch.arange(IMAGES) % CLASSES

    def draw(strength: float) -> torch.Tensor:
        return (torch.randn(IMAGES, WIDTH, generator=generator) + 0.5 + strength * centres[labels]).clamp(min=0)

    inside, outside = draw(0.5), draw(0.42)
    kept = torch.rand(IMAGES, WIDTH, generator=generator) < 0.5
    outside = torch.where(kept, 2 * outside, 0.0) if peaked else outside + 0.8
    head = Head(0.1 * centres, torch.full((CLASSES,), 1.0))
    return World(head, Activations(inside, head(inside), labels), Activations(outside, head(outside)))

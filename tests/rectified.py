"""Small worlds of rectified Gaussians."""

from __future__ import annotations

from typing import NamedTuple

import torch

from idness.core.types import Activations, Head


class World(NamedTuple):
    head: Head
    inside: Activations
    outside: Activations


def rectified_world(
    gamma_id: float, gamma_ood: float, *, width: int = 256, images: int = 400, classes: int = 8
) -> World:
    """Rectified Gaussians with class-wise means: what the paper assumes, with labels that the head can read."""
    generator = torch.Generator().manual_seed(7)
    centres = torch.randn(classes, width, generator=generator)
    labels = torch.arange(images) % classes
    inside = (torch.randn(images, width, generator=generator) + gamma_id + 0.6 * centres[labels]).clamp(min=0)
    outside = (torch.randn(images, width, generator=generator) + gamma_ood).clamp(min=0)
    head = Head(0.06 * centres, torch.linspace(-0.3, 0.3, classes))
    return World(head, Activations(inside, head(inside), labels), Activations(outside, head(outside)))


def ratio_world(*, peaked: bool, width: int = 256, images: int = 400, classes: int = 8) -> World:
    """ID and OOD of nearly the same energies; OOD activations are concentrated (small r) or level (large r)."""
    generator = torch.Generator().manual_seed(3)
    centres = torch.randn(classes, width, generator=generator)
    labels = torch.arange(images) % classes

    def draw(strength: float) -> torch.Tensor:
        return (torch.randn(images, width, generator=generator) + 0.5 + strength * centres[labels]).clamp(min=0)

    inside, outside = draw(0.5), draw(0.42)
    if peaked:
        kept = torch.rand(images, width, generator=generator) < 0.5
        outside = torch.where(kept, 2 * outside, 0.0)
    else:
        outside = outside + 0.8
    head = Head(0.1 * centres, torch.full((classes,), 1.0))
    return World(head, Activations(inside, head(inside), labels), Activations(outside, head(outside)))

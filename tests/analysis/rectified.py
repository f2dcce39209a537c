"""Small worlds of rectified Gaussians."""

from __future__ import annotations

from typing import NamedTuple

import torch

from idness.types import Activations, Head


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

"""Further kinds of stand-ins for OOD images: rivals of those that idness makes, for the study that chooses among all of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

TILES = 4
"""A picture is cut into so many tiles a side."""
COARSE = 8
"""Of a blurred picture so many pixels a side are left; a zoomed one shows a quarter of its side."""


def tiles(images: Tensor, seed: int) -> Tensor:
    """Shuffle the tiles of each image; a border that no tile covers stays."""
    high, wide = (side // TILES for side in images.shape[-2:])
    draw, made = torch.Generator().manual_seed(seed), images.clone()
    for image, to in zip(images, made, strict=True):
        order = torch.randperm(TILES * TILES, generator=draw).tolist()
        for place, source in enumerate(order):
            (top, left), (row, column) = divmod(place, TILES), divmod(source, TILES)
            to[:, top * high : (top + 1) * high, left * wide : (left + 1) * wide] = image[
                :, row * high : (row + 1) * high, column * wide : (column + 1) * wide
            ]
    return made


def blended(images: Tensor, seed: int) -> Tensor:
    """Lay each image half transparent over the next."""
    return (images + images.roll(1, 0)) / 2


def scrambled(images: Tensor, seed: int) -> Tensor:
    """Keep the strength of every frequency and draw its phase anew."""
    spectrum = torch.fft.rfft2(images)
    noise = torch.rand(len(images), 1, *images.shape[-2:], generator=torch.Generator().manual_seed(seed))
    phases = torch.fft.rfft2(noise).angle()
    made: Tensor = torch.fft.irfft2(torch.polar(spectrum.abs(), phases.expand_as(spectrum)), s=images.shape[-2:])
    return made.clamp(0, 1)


def blurred(images: Tensor, seed: int) -> Tensor:
    """Leave only a few large spots of colour."""
    small = functional.adaptive_avg_pool2d(images, COARSE)
    return functional.interpolate(small, images.shape[-2:], mode="bicubic", antialias=False).clamp(0, 1)


def noisy(images: Tensor, seed: int) -> Tensor:
    """Add noise as strong as the picture itself."""
    return (images + 0.4 * torch.randn(images.shape, generator=torch.Generator().manual_seed(seed))).clamp(0, 1)


def zoomed(images: Tensor, seed: int) -> Tensor:
    """Show the middle quarter of each side only."""
    height, width = images.shape[-2:]
    top, left = 3 * height // 8, 3 * width // 8
    part = images[..., top : top + max(1, height // 4), left : left + max(1, width // 4)]
    return functional.interpolate(part, (height, width), mode="bilinear")


RIVALS: dict[str, Callable[[Tensor, int], Tensor]] = {
    make.__name__: make for make in (tiles, blended, scrambled, blurred, noisy, zoomed)
}
"""By name, as `idness.selection.pseudo_ood.KINDS` has them."""

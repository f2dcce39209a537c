"""Makes stand-ins for OOD images out of ID images: pictures that keep something of them and show nothing known.

Of 23 kinds that were tried on real networks (shuffled tiles, blends, phase noise, blur, noise, zooms, colours, ...) these
four together rank methods most like real OOD images do; single ones mislead: `results/auto.md`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

TILES = 4
"""A piece of this fraction of either side is repeated over the whole picture."""
FINE = 64
"""Edges are looked for at this many pixels a side: those of a large photograph are not its noise."""
EDGES = 0.8
"""The share of a picture, counted from the faintest edge, that becomes black."""


def mosaic(images: Tensor, seed: int = 0) -> Tensor:
    """Repeat a random piece of each image over the whole."""
    height, width = images.shape[-2:]
    high, wide = max(1, height // TILES), max(1, width // TILES)
    generator = torch.Generator().manual_seed(seed)
    tops = torch.randint(height - high + 1, (len(images),), generator=generator).tolist()
    lefts = torch.randint(width - wide + 1, (len(images),), generator=generator).tolist()
    rows, columns = torch.arange(height) % high, torch.arange(width) % wide
    pieces = [image[:, top + rows][:, :, left + columns] for image, top, left in zip(images, tops, lefts, strict=True)]
    return torch.stack(pieces)


def inverted(images: Tensor, seed: int = 0) -> Tensor:
    """Turn bright into dark and each colour into its complement."""
    return 1 - images


def turned(images: Tensor, seed: int = 0) -> Tensor:
    """Turn each image upside down."""
    return images.rot90(2, (2, 3))


def edges(images: Tensor, seed: int = 0) -> Tensor:
    """Draw the edges of each image, white on black."""
    grey = images.mean(dim=1, keepdim=True)
    coarse = max(1, min(images.shape[-2:]) // FINE)
    if coarse > 1:
        grey = functional.avg_pool2d(grey, coarse)
    sobel = torch.tensor([[1.0, 2.0, 1.0], [0.0, 0.0, 0.0], [-1.0, -2.0, -1.0]]).view(1, 1, 3, 3)
    around = functional.pad(grey, (1, 1, 1, 1), mode="replicate")
    both = functional.conv2d(around, torch.cat([sobel, sobel.transpose(2, 3)]))
    strength = both.square().sum(dim=1, keepdim=True).sqrt()
    faint = strength.flatten(1).quantile(EDGES, dim=1).view(-1, 1, 1, 1)
    strongest = strength.flatten(1).amax(dim=1).view(-1, 1, 1, 1)
    drawn = ((strength - faint) / (strongest - faint + 1e-6) * 2).clamp(0, 1)
    return functional.interpolate(drawn, images.shape[-2:], mode="bilinear").expand_as(images).contiguous()


KINDS: dict[str, Callable[[Tensor, int], Tensor]] = {make.__name__: make for make in (mosaic, inverted, turned, edges)}
"""The kinds by name; each takes images (N, C, H, W) in [0, 1] and a seed, and gives as many of the same size."""


def pseudo_ood(images: Tensor, seed: int = 0) -> dict[str, Tensor]:
    """Make every kind of stand-in out of images (N, C, H, W) with values in [0, 1]; the same seed gives the same pictures."""
    return {name: make(images, seed) for name, make in KINDS.items()}

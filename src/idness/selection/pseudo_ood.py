"""Pseudo-OOD images: transformed ID images that resemble the originals but do not show known content.

Of 23 kinds tested on real networks (shuffled tiles, blends, phase noise, blur, noise, zooms, colours, ...), these four
together rank methods most like real OOD images; single kinds are misleading. `results/auto.md` has the measurements.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from idness.activations.extract import collect
from idness.core.progress import Progress
from idness.core.types import Activations
from idness.data.activations import ActivationsSet
from idness.data.sets import part_of
from idness.networks.open import Network

TILES = 4
"""Side of the repeated patch, as a fraction of the side of the image."""
FINE = 64
"""Resolution at which edges are detected, so that edges in large photographs are not noise."""
EDGES = 0.8
"""Fraction of pixels, those with the weakest edges, that become black."""
MOST = 500
"""Maximum number of ID images that are transformed."""


def mosaic(images: Tensor, seed: int = 0) -> Tensor:
    """Return images that each repeat a random patch of the original."""
    height, width = images.shape[-2:]
    high, wide = max(1, height // TILES), max(1, width // TILES)
    generator = torch.Generator().manual_seed(seed)
    tops = torch.randint(height - high + 1, (len(images),), generator=generator).tolist()
    lefts = torch.randint(width - wide + 1, (len(images),), generator=generator).tolist()
    rows, columns = torch.arange(height) % high, torch.arange(width) % wide
    pieces = [image[:, top + rows][:, :, left + columns] for image, top, left in zip(images, tops, lefts, strict=True)]
    return torch.stack(pieces)


def edges(images: Tensor) -> Tensor:
    """Return the edges of each image, white on black."""
    grey = functional.avg_pool2d(images.mean(dim=1, keepdim=True), max(1, min(images.shape[-2:]) // FINE))
    sobel = torch.tensor([[1.0, 2.0, 1.0], [0.0, 0.0, 0.0], [-1.0, -2.0, -1.0]]).view(1, 1, 3, 3)
    around = functional.pad(grey, (1, 1, 1, 1), mode="replicate")
    both = functional.conv2d(around, torch.cat([sobel, sobel.transpose(2, 3)]))
    strength = both.square().sum(dim=1, keepdim=True).sqrt()
    faint = strength.flatten(1).quantile(EDGES, dim=1).view(-1, 1, 1, 1)
    strongest = strength.flatten(1).amax(dim=1).view(-1, 1, 1, 1)
    drawn = ((strength - faint) / (strongest - faint + 1e-6) * 2).clamp(0, 1)
    return functional.interpolate(drawn, images.shape[-2:], mode="bilinear").expand_as(images).contiguous()


KINDS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "mosaic": mosaic,
    "inverted": lambda images, _: 1 - images,
    "turned": lambda images, _: images.rot90(2, (2, 3)),
    "edges": lambda images, _: edges(images),
}
"""Kinds of pseudo-OOD images; each maps images (N, C, H, W) in [0, 1] and a seed to images of the same shape."""


def pseudo_activations(
    network: Network, ids: ActivationsSet, *, every: int = 1, progress: Progress | None = None
) -> dict[str, Activations]:
    """Return the activations of each kind of pseudo-OOD images, made from every n-th ID image; empty if there are no images.

    The last of every n images is used, since methods are fitted on the others.
    """
    if ids.images is None or ids.acts.index is None:
        return {}
    images = part_of(ids.images, ids.acts.index[every - 1 :: every].tolist(), "for pseudo-OOD images")
    if len(images) == 0:
        return {}
    how = network.preprocessing
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (how.mean, how.std))
    found = {}
    for kind, make in KINDS.items():

        def edit(inputs: Tensor, start: int, make: Callable[[Tensor, int], Tensor] = make) -> Tensor:
            return (make((inputs * std + mean).clamp(0, 1), start) - mean) / std

        found[kind] = collect(network, images, name=f"{kind} ID images", limit=MOST, edit=edit, progress=progress).acts
    return found

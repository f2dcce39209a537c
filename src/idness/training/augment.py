"""Random crops and flips of whole uint8 batches, a pure function of the numbers drawn."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

PAD = 4


def crop_flip(images: Tensor, generator: torch.Generator, pad: int = PAD) -> Tensor:
    """Shift each image by up to `pad` pixels, reflecting its border, and mirror every second one.

    Takes and returns (N, H, W, 3) uint8. Drawn from `generator` alone, in one order for the whole batch.
    """
    count, height, width, _ = images.shape
    top, left = torch.randint(0, 2 * pad + 1, (2, count, 1), generator=generator)
    mirrored = torch.rand(count, 1, generator=generator) < 0.5
    rows = top + torch.arange(height)
    columns = left + torch.arange(width)
    columns = torch.where(mirrored, columns.flip(1), columns)
    # (N, H, W, 3) is padded as (N, 3, H, W): reflection knows only the last dimensions.
    padded = F.pad(images.permute(0, 3, 1, 2), (pad, pad, pad, pad), mode="reflect").permute(0, 2, 3, 1)
    index = torch.arange(count)[:, None, None]
    return padded[index, rows[:, :, None], columns[:, None, :]]

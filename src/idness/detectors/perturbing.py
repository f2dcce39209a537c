"""Logits under heads whose weights are perturbed, of one length of the perturbation and of others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import linear

from idness.core.types import Head
from idness.detectors.kernels import row_blocks, unit

Perturbed = tuple[Tensor, list[Tensor]]
"""Features of some images, and their logits under perturbed heads, by length of the perturbation."""
HELD = 1 << 25
"""How many perturbed logits are kept at most: 134 MB of them in single precision."""
EXACT = 5_000
"""Perturbed logits of an image, below which they are computed in float64."""


def perturbed_weights(head: Head, repeats: int, most: int, deltas: Sequence[float]) -> list[Tensor]:
    """Make the weights of perturbed heads (copies x C, D) for each of several lengths of the perturbation; always the same ones.

    Args:
        head: the network's own.
        repeats: how many perturbed heads.
        most: perturbed logits of an image; where they are enough there are fewer heads.
        deltas: lengths of perturbations, as multiples of the length of a class's weights.
    """
    copies = min(repeats, max(1, most // head.classes))
    # Rounding differs from batch to batch: it must not move a value to another bin, unless there are thousands.
    kind = torch.double if copies * head.classes < EXACT else torch.float32
    plain = head.weight.to(kind).repeat(copies, 1)
    noise = unit(torch.randn(plain.shape, generator=torch.Generator().manual_seed(0))).to(plain)
    noise *= plain.norm(dim=1, keepdim=True)
    return [plain + delta * noise for delta in deltas]


class PerturbedLogits:
    """Gives features and perturbed logits block by block, as often as one likes; if they are few they are kept from the first time.

    Args: those of `perturbed_logits`.
    """

    def __init__(self, features: Tensor, head: Head, weights: Tensor, deltas: Sequence[float]) -> None:
        self._make = partial(perturbed_logits, features, head, weights, deltas)
        self._few = len(features) * len(weights) * len(deltas) <= HELD
        self._kept: list[Perturbed] | None = None

    def __iter__(self) -> Iterator[Perturbed]:
        if self._few and self._kept is None:
            self._kept = list(self._make())
        return self._make() if self._kept is None else iter(self._kept)


def perturbed_logits(features: Tensor, head: Head, weights: Tensor, deltas: Sequence[float]) -> Iterator[Perturbed]:
    """Yield features by blocks, in the precision of the weights, and their perturbed logits (N, copies, C).

    Args:
        features: those of the images.
        head: the network's own.
        weights: perturbed ones, by the first length.
        deltas: the lengths of which logits are wanted.
    """
    own, offset = head.weight.to(weights), head.offset.to(weights)
    offsets, others = offset.repeat(len(weights) // head.classes), [delta / deltas[0] for delta in deltas[1:]]
    for part in row_blocks(features, len(weights)):
        values = part.to(weights)
        logits = linear(values, weights, offsets).reshape(len(values), -1, head.classes)
        # As perturbations grow, logits go straight on from the plain ones: one large product serves every length.
        plain = linear(values, own, offset).unsqueeze(1) if others else logits
        yield values, [logits, *(plain.lerp(logits, times) for times in others)]

"""ActSub -- Zöngür et al., "Activation Subspaces for Out-of-Distribution Detection", ICCV 2025."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import linear

from idness.core.checks import check_at_most_images, count, percent, positive
from idness.core.types import Activations, Head
from idness.detectors.detector import Detector
from idness.detectors.gaussian import head_axes
from idness.detectors.kernels import mean_largest_products, scale_ratios, unit
from idness.detectors.readouts import energy
from idness.detectors.sharing import shared


@dataclass(kw_only=True)
class ActSub(Detector):
    """Multiply SCALE's energy of what the head sees of the features by how near the rest is to training images.

    Args:
        percentile: share of activations, in percent, left out of SCALE's sum of the largest.
        power: exponent of the nearness; the larger, the less the energy counts.
        k: how many of the nearest training images count.
    """

    formula = (
        r"E(W a_D\, e^{r(a_D)} + b) \cdot (-\log(1 - s))^{\lambda}, \quad "
        r"s = \frac{1}{k} \sum_{i \in kNN} \langle \bar a_I, \bar a_{I,i} \rangle"
    )
    assumes = "what the head sees and what it does not both tell ID images"
    needs_train = True
    uses_head = True
    grid = {"percentile": (85.0, 90.0, 92.5, 95.0, 97.5), "power": (0.5, 1.0, 1.5, 2.0)}
    other = {"k": 3}

    percentile: float = percent(85.0)
    power: float = positive(2.0)
    k: int = count(10)

    @classmethod
    def learn_many(cls, detectors: Sequence[Self], head: Head, train: Activations, val: Activations) -> None:
        basis = _decisive_basis(head, train)
        bank = unit(train.features - train.features @ basis @ basis.T)
        for detector in detectors:
            check_at_most_images(detector, "k", len(bank))
            detector.basis_, detector.bank_ = basis, bank

    @classmethod
    def rate_many(cls, detectors: Sequence[Self], acts: Activations) -> list[Tensor]:
        first = detectors[0]
        decisive = acts.features @ first.basis_ @ first.basis_.T
        rest = unit(acts.features - decisive)
        cosines = mean_largest_products(rest, first.bank_, [detector.k for detector in detectors])
        ratios = scale_ratios(decisive, [detector.percentile for detector in detectors])
        # W (a f) + b = f (W a) + b: one product serves every percentile.
        plain, offset = linear(decisive, first.head_.weight), first.head_.offset
        factors = {detector.percentile: ratio.exp() for detector, ratio in zip(detectors, ratios, strict=True)}
        shaped = {each: energy(torch.addcmul(offset, plain, factor.unsqueeze(1))) for each, factor in factors.items()}
        # An opposite direction is as far as none at all: a negative number has no power.
        nearness = [-(1 - cosine.clamp(0.0, 1 - 1e-6)).log() for cosine in cosines]
        both = zip(detectors, nearness, strict=True)
        return [shaped[detector.percentile] * near**detector.power for detector, near in both]


@shared
def _decisive_basis(head: Head, train: Activations) -> Tensor:
    """Take the leading right singular vectors of the head, until training images are as long inside as outside.

    The authors' code goes on into directions that the head does not see at all. Those have no order (which come first
    is the linear algebra library's choice), so we stop where the head does, and they stay in the rest.
    """
    vectors = head_axes(head)[2]
    surplus = torch.zeros(vectors.shape[1], dtype=torch.double, device=vectors.device)
    for part in train.batches(4096):
        whole = part.features.double()
        inside = (whole @ vectors).square().cumsum(dim=1)
        outside = (whole.square().sum(dim=1, keepdim=True) - inside).clamp(min=0)
        surplus += (inside.sqrt() - outside.sqrt()).sum(dim=0)
    count = int(surplus.abs()[: max(1, head.width - 1)].argmin()) + 1
    return vectors[:, :count].float().contiguous()

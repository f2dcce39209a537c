"""ActSub -- Zöngür et al., "Activation Subspaces for Out-of-Distribution Detection", ICCV 2025."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import linear

from idness.core.options import check_at_most_images, count, percent, positive
from idness.core.types import Activations, Head
from idness.detectors.detector import Detector
from idness.detectors.gaussian import head_axes
from idness.detectors.kernels import largest_products, scale_ratio, shared, unit
from idness.detectors.readouts import energy


@dataclass(kw_only=True)
class ActSub(Detector):
    """SCALE's energy of the features that the head uses, times the similarity of the rest to training images.

    Args:
        percentile: percentage of activations excluded from SCALE's sum of the largest.
        power: exponent of the similarity; the larger, the smaller the influence of the energy.
        k: number of nearest training images.
    """

    formula = (
        r"E(W a_D\, e^{r(a_D)} + b) \cdot (-\log(1 - s))^{\lambda}, \quad "
        r"s = \frac{1}{k} \sum_{i \in kNN} \langle \bar a_I, \bar a_{I,i} \rangle"
    )
    assumes = "both what the head uses and what it ignores separate ID from OOD images"
    needs_train = assumes_nonnegative = uses_head = True
    grid = {"percentile": (85.0, 90.0, 92.5, 95.0, 97.5), "power": (0.5, 1.0, 1.5, 2.0)}
    other = {"k": 3}

    percentile: float = percent(85.0)
    power: float = positive(2.0)
    k: int = count(10)

    def learn(self, head: Head, train: Activations, val: Activations) -> None:
        check_at_most_images(self, "k", len(train))
        self.basis_, self.bank_ = _decisive_basis(head, train)

    @classmethod
    def rate_many(cls, detectors: Sequence[Self], acts: Activations) -> list[Tensor]:
        first = detectors[0]
        decisive = acts.features @ first.basis_ @ first.basis_.T
        cosines = _rest_similarity(acts.features, first.basis_, first.bank_, tuple({one.k: None for one in detectors}))
        # W (a f) + b = f (W a) + b: one product serves every percentile.
        plain, offset = linear(decisive, first.head_.weight), first.head_.offset
        factors = {each: scale_ratio(decisive, each).exp() for each in {one.percentile for one in detectors}}
        shaped = {each: energy(torch.addcmul(offset, plain, factor.unsqueeze(1))) for each, factor in factors.items()}
        # Negative cosines count as 0: a negative number has no power.
        near = {k: -(1 - cosine.clamp(0.0, 1 - 1e-6)).log() for k, cosine in cosines.items()}
        return [shaped[detector.percentile] * near[detector.k] ** detector.power for detector in detectors]


@shared
def _rest_similarity(features: Tensor, basis: Tensor, bank: Tensor, ks: tuple[int, ...]) -> dict[int, Tensor]:
    """Return, for each k, the mean cosine (N,) with the k nearest training images, of features outside the basis."""
    rest = unit(features - features @ basis @ basis.T)
    return dict(zip(ks, largest_products(rest, bank, ks, lambda largest: largest.mean(dim=1)), strict=True))


@shared
def _decisive_basis(head: Head, train: Activations) -> tuple[Tensor, Tensor]:
    """Return the leading right singular vectors of the head, and the unit features of training images outside them.

    Their number is such that training features have equal length inside and outside their span. The authors' code continues
    into directions that the head ignores; the order of these is arbitrary, so we stop at the rank of the head.
    """
    vectors = head_axes(head)[2]
    surplus = torch.zeros(vectors.shape[1], dtype=torch.double, device=vectors.device)
    for part in train.batches(4096):
        whole = part.features.double()
        inside = (whole @ vectors).square().cumsum(dim=1)
        outside = (whole.square().sum(dim=1, keepdim=True) - inside).clamp(min=0)
        surplus += (inside.sqrt() - outside.sqrt()).sum(dim=0)
    size = int(surplus.abs()[: max(1, head.width - 1)].argmin()) + 1
    basis = vectors[:, :size].float().contiguous()
    return basis, unit(train.features - train.features @ basis @ basis.T)

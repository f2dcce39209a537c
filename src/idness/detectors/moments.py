"""Means and covariances of training images, as a whole or by class, in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from idness.core.types import Activations
from idness.detectors.sharing import shared

BLOCK = 1024
"""Number of rows converted to float64 at a time."""


@dataclass(frozen=True, eq=False)
class Moments:
    """Row counts (G,), means (G, D) and the pooled scatter matrix (D, D) of groups of rows.

    The scatter matrix sums the outer products of rows minus the mean of their group; `None` if it was not requested.
    """

    counts: Tensor
    means: Tensor
    scatter: Tensor | None = None

    @classmethod
    def of(
        cls,
        rows: Tensor,
        groups: Tensor | None = None,
        count: int = 1,
        *,
        scatter: bool = False,
        place: Callable[[Tensor], Tensor] = Tensor.double,
    ) -> Self:
        """Compute the moments of rows (N, D) that belong to `count` groups (N,); `place` maps rows to float64 points."""
        owners = torch.zeros(len(rows), dtype=torch.long, device=rows.device) if groups is None else groups
        counts = torch.bincount(owners, minlength=count)
        means = torch.zeros(count, rows.shape[1], dtype=torch.double, device=rows.device)
        blocks = list(zip(torch.split(rows, BLOCK), torch.split(owners, BLOCK), strict=True))
        for block, owner in blocks:
            means.index_add_(0, owner, place(block))
        means /= counts.clamp(min=1).unsqueeze(1)
        if not scatter:
            return cls(counts, means)
        products = means.new_zeros(rows.shape[1], rows.shape[1])
        for block, owner in blocks:
            centred = place(block) - means[owner]
            products.addmm_(centred.T, centred)
        return cls(counts, means, products)

    @property
    def count(self) -> int:
        """The number of rows."""
        return int(self.counts.sum())

    @property
    def present(self) -> Tensor:
        """Mask (G,) of the groups that have at least one row."""
        return self.counts > 0

    @property
    def mean(self) -> Tensor:
        """The mean of all rows."""
        return (self.means * self.counts.unsqueeze(1)).sum(dim=0) / max(1, self.count)

    def within(self) -> Tensor:
        """Return the covariance of rows around the means of their groups."""
        assert self.scatter is not None
        return self.scatter / max(1, self.count)

    def around(self, origin: Tensor) -> Tensor:
        """Return the second moment of rows around one origin; around their mean, that is the covariance."""
        assert self.scatter is not None
        apart = self.means - origin
        return (self.scatter + apart.T @ (apart * self.counts.unsqueeze(1))) / max(1, self.count)


@shared
def feature_moments(acts: Activations) -> Moments:
    """Return mean and scatter of the features of all images."""
    return Moments.of(acts.features, scatter=True)


@shared
def class_moments(acts: Activations, place: Callable[[Tensor], Tensor]) -> Moments:
    """Return the mean of each labelled class and the scatter around it, of features mapped by `place`."""
    return Moments.of(acts.features, acts.labels, acts.logits.shape[1], scatter=True, place=place)


def mean_features(acts: Activations) -> Tensor:
    """Return the mean feature vector (D,) in float64."""
    return acts.features.mean(dim=0, dtype=torch.double)

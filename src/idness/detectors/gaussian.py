"""Means, covariances and squared Mahalanobis distances, in float64 and without a loop over classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from idness.core.types import Activations, Head
from idness.detectors.kernels import shared

BLOCK = 1024
"""Number of rows converted to float64 at a time."""
CLEAR = 1e-10
"""Smallest pivot, relative to the largest variance, that is certainly not a rounding error in float64."""


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
        """Return the moments of rows (N, D) that belong to `count` groups (N,); `place` maps rows to float64 points."""
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
        """Number of rows."""
        return int(self.counts.sum())

    # Cached, so that `shared` functions see the same object each time.

    @cached_property
    def mean(self) -> Tensor:
        """Mean (D,) of all rows."""
        return (self.means * self.counts.unsqueeze(1)).sum(dim=0) / max(1, self.count)

    @cached_property
    def within(self) -> Tensor:
        """Covariance (D, D) of rows around the means of their groups."""
        assert self.scatter is not None
        return self.scatter / max(1, self.count)

    @shared
    def around(self, origin: Tensor) -> Tensor:
        """Return the second moment (D, D) of rows around an origin; around their mean, this is the covariance."""
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


@shared
def mean_features(acts: Activations) -> Tensor:
    """Return the mean feature vector (D,) in float64."""
    return acts.features.mean(dim=0, dtype=torch.double)


@shared
def principal_axes(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvectors as columns, and eigenvalues in descending order; those below float64 resolution are 0."""
    values, vectors = torch.linalg.eigh(covariance)
    limit = values.abs().max() * len(values) * torch.finfo(torch.double).eps
    return vectors.flip(1), torch.where(values > limit, values, 0.0).flip(0)


def oas_shrinkage(covariance: Tensor, count: int) -> float:
    """Return the oracle approximating shrinkage of Chen et al. (2010) for a covariance (D, D) of `count` independent rows.

    It is near 0 for many rows and near 1 for few; 1 if all variances are equal.
    """
    width, mean = len(covariance), covariance.diagonal().mean()
    power = covariance.square().mean()
    excess = (count + 1) * (power - mean.square() / width)
    return min(1.0, float((power + mean.square()) / excess)) if excess > 0 else 1.0


@shared
def whitening(covariance: Tensor, shrinkage: float = 0.0) -> Tensor:
    """Return a matrix V such that |x V|^2 is the squared Mahalanobis distance of x from the mean.

    `covariance` is (D, D) in float64, as scores are small differences of distances in the thousands; `shrinkage` in [0, 1] moves it
    towards a multiple of the identity. Otherwise directions without variance are left out, as in a pseudo-inverse.
    """
    identity = torch.eye(len(covariance)).to(covariance)
    if shrinkage:
        covariance = (1 - shrinkage) * covariance + shrinkage * covariance.diagonal().mean() * identity
    # For a matrix of full rank, a Cholesky factor gives the same distances at a fifth of the cost.
    root, failed = torch.linalg.cholesky_ex(covariance)
    if not failed and bool(root.diagonal().square().min() > CLEAR * covariance.diagonal().max()):
        inverse: Tensor = torch.linalg.solve_triangular(root.T, identity, upper=True)
        return inverse
    axes, variances = principal_axes(covariance)
    alive = variances > 0
    scaled: Tensor = axes[:, alive] / variances[alive].sqrt()
    return scaled


def whitening_of(centred: Tensor) -> Tensor:
    """Return the whitening matrix of rows without their mean; with fewer rows than columns it is found in the space of rows."""
    count, width = centred.shape
    if count >= width:
        return whitening(centred.T @ centred / count)
    axes, variances = principal_axes(centred @ centred.T / count)
    varying = variances > 0
    found: Tensor = centred.T @ (axes[:, varying] / (variances[varying] * count**0.5))
    return found


@shared
def head_axes(head: Head) -> tuple[Tensor, Tensor, Tensor]:
    """Return the singular value decomposition W = U diag(s) V^T of the head's weight, in float64, as (U, s, V)."""
    left, sizes, right = torch.linalg.svd(head.weight.double(), full_matrices=False)
    return left, sizes, right.T


def nearest_squared(points: Tensor, means: Tensor) -> Tensor:
    """Return the squared distance (N,) of each whitened point to the nearest whitened mean."""
    # |x - m|^2 = |x|^2 - 2 x m + |m|^2: one matrix product for all classes.
    cross = points @ means.T
    return (points.square().sum(dim=1) + (means.square().sum(dim=1) - 2 * cross).amin(dim=1)).clamp(min=0)

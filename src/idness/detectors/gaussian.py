"""Gaussians with one shared covariance, and squared Mahalanobis distances without a loop over classes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from idness.core.types import Activations, Head


def principal_axes(centred: Tensor) -> tuple[Tensor, Tensor]:
    """Find the directions in which centred rows vary, the largest variance first, and those variances.

    In float64. Variances below what float64 resolves are 0: nothing varies there (dead features, few images).
    """
    exact = centred.double()
    values, vectors = torch.linalg.eigh(exact.T @ exact / len(exact))
    limit = values.abs().max() * len(values) * torch.finfo(torch.double).eps
    return vectors.flip(1), torch.where(values > limit, values, 0.0).flip(0)


def whitening(centred: Tensor, shrinkage: float = 0.0) -> Tensor:
    """Compute a matrix V, so that |x V|^2 is the squared Mahalanobis distance of x from the mean.

    In float64, as all that follows from it: a score is the difference of distances in the thousands. Directions in
    which nothing varies (dead features) are left out, as a pseudo-inverse does, unless the variances are shrunk.

    Args:
        centred: rows without their mean.
        shrinkage: how far the variances move towards their mean: 0 not at all, 1 all the way.
    """
    axes, variances = principal_axes(centred)
    variances = (1 - shrinkage) * variances + shrinkage * variances.mean()
    alive = variances > 0
    scaled: Tensor = axes[:, alive] / variances[alive].sqrt()
    return scaled


def residual_spaces(head: Head, train: Activations, shares: Sequence[float]) -> tuple[Tensor, list[Tensor]]:
    """Find what training images leave out: the directions outside their principal space, for several sizes of it.

    Returns the origin, where features are as if all logits were 0, and for each share (in percent, of the directions in
    which training images vary) the directions that remain, as columns.
    """
    # ViM's origin u = -W^+ b: without the bias, logits are W (a - u).
    origin = -torch.linalg.pinv(head.weight.double()) @ head.offset.double()
    axes, variances = principal_axes(train.features.double() - origin)
    alive = int((variances > 0).sum())
    return origin, [axes[:, min(round(alive * share / 100), len(axes) - 1) :].contiguous() for share in shares]


def too_few(features: Tensor, labels: Tensor) -> str | None:
    """Say what is missing where the classes' common covariance rests on too few images to have full rank; none where it has."""
    varying, classes = int((features.amax(dim=0) > features.amin(dim=0)).sum()), int((torch.bincount(labels) > 0).sum())
    # The mean of each class takes up one image.
    rank = len(features) - classes
    if rank >= varying:
        return None
    return (
        f"the covariance of {varying} features has rank {rank} at most with {len(features)} training images of {classes} classes;"
        f" give more than {varying + classes}, better ten times as many, or set shrinkage"
    )


def class_gaussians(
    features: Tensor, labels: Tensor, classes: int, shrinkage: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Fit a Gaussian to each class of features in float64, with one covariance for all.

    Returns the mean of all images, the whitening of class-centred features, and the whitened means of the classes that
    have images, relative to the mean of all.
    """
    means, present = class_means(features, labels, classes)
    centre = features.mean(dim=0)
    white = whitening(features - means[labels], shrinkage)
    return centre, white, (means[present] - centre) @ white


def class_means(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Compute the mean of each class (C, D), in float64, and which classes have any image (C,)."""
    sums = torch.zeros(classes, features.shape[1], dtype=torch.double, device=features.device)
    sums.index_add_(0, labels, features.double())
    counts = torch.bincount(labels, minlength=classes)
    return sums / counts.clamp(min=1).unsqueeze(1), counts > 0


def nearest_squared(points: Tensor, means: Tensor) -> Tensor:
    """Compute each whitened point's least squared distance to a whitened mean."""
    # |x - m|^2 = |x|^2 - 2 x m + |m|^2: one matrix product for all classes.
    cross = points @ means.T
    return (points.square().sum(dim=1) + (means.square().sum(dim=1) - 2 * cross).amin(dim=1)).clamp(min=0)

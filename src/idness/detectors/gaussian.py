"""Gaussians with one shared covariance, and squared Mahalanobis distances without a loop over classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from idness.core.types import Activations, Head
from idness.detectors.kernels import lengths, row_blocks
from idness.detectors.moments import Moments, feature_moments
from idness.detectors.sharing import shared

SPAN = 80
"""How many whitened directions of a cluster are computed at once."""
CLEAR = 1e-10
"""The least share of the largest variance that is surely no rounding; far more than float64 leaves of nothing."""


def covariance(centred: Tensor) -> Tensor:
    """Compute the covariance of rows without their mean, in float64."""
    exact = centred.double()
    return exact.T @ exact / len(exact)


@shared
def principal_axes(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Find the directions in which rows of this covariance vary, the largest variance first, and those variances.

    In float64. Variances below what float64 resolves are 0: nothing varies there (dead features, few images).
    """
    values, vectors = torch.linalg.eigh(covariance)
    limit = values.abs().max() * len(values) * torch.finfo(torch.double).eps
    return vectors.flip(1), torch.where(values > limit, values, 0.0).flip(0)


@shared
def whitening(covariance: Tensor, shrinkage: float = 0.0) -> Tensor:
    """Compute a matrix V, so that |x V|^2 is the squared Mahalanobis distance of x from the mean.

    In float64, as all that follows from it: a score is the difference of distances in the thousands. Directions in
    which nothing varies (dead features) are left out, as a pseudo-inverse does, unless the variances are shrunk.

    Args:
        covariance: that of the rows.
        shrinkage: how far the variances move towards their mean: 0 not at all, 1 all the way.
    """
    if not bool(covariance.any()):  # as where every class has one image
        return covariance.new_zeros(len(covariance), 0)
    whole = torch.eye(len(covariance)).to(covariance)
    if shrinkage:
        covariance = (1 - shrinkage) * covariance + shrinkage * covariance.diagonal().mean() * whole
    # Where everything clearly varies, a Cholesky factor gives the same distances for a fifth of the work.
    root, failed = torch.linalg.cholesky_ex(covariance)
    if not failed and bool(root.diagonal().square().min() > CLEAR * covariance.diagonal().max()):
        inverse: Tensor = torch.linalg.solve_triangular(root.T, whole, upper=True)
        return inverse
    axes, variances = principal_axes(covariance)
    alive = variances > 0
    scaled: Tensor = axes[:, alive] / variances[alive].sqrt()
    return scaled


def whitening_of(groups: Sequence[Tensor]) -> Tensor:
    """Compute the same of groups of rows, each without its mean; of few rows it is found among themselves, which is less work."""
    centred = torch.cat(list(groups))
    count, width = centred.shape
    if count >= width:
        return whitening(covariance(centred))
    gram = centred @ centred.T
    # A group's rows add up to nothing, so the matrix of their products has no inverse. Whatever is added along these sums, which the
    # rows do not see, changes nothing that follows, and then there is one.
    whole, start = gram.clone(), 0
    for group in groups:
        rows = slice(start, start := start + len(group))
        whole[rows, rows] += gram.diagonal().mean() / len(group)
    root, failed = torch.linalg.cholesky_ex(whole)
    if not failed and bool(root.diagonal().square().min() > CLEAR * gram.diagonal().max()):
        found: Tensor = torch.cholesky_solve(centred, root).T * count**0.5
        return found
    axes, variances = principal_axes(gram / count)
    varying = variances > 0
    found = centred.T @ (axes[:, varying] / (variances[varying] * count**0.5))
    return found


def residual_spaces(head: Head, train: Activations, shares: Sequence[float]) -> tuple[Tensor, list[Tensor]]:
    """Find what training images leave out: the directions outside their principal space, for several sizes of it.

    Returns the origin, where features are as if all logits were 0, and for each share (in percent, of the directions in
    which training images vary) the directions that remain, as columns.
    """
    origin = _origin(head)
    axes, variances = principal_axes(feature_moments(train).around(origin))
    alive = int((variances > 0).sum())
    return origin, [axes[:, min(round(alive * share / 100), len(axes) - 1) :].contiguous() for share in shares]


@shared
def head_axes(head: Head) -> tuple[Tensor, Tensor, Tensor]:
    """Decompose the head's weights, W = U diag(s) V^T, in float64; U and V have the singular vectors as columns."""
    left, sizes, right = torch.linalg.svd(head.weight.double(), full_matrices=False)
    return left, sizes, right.T


def _origin(head: Head) -> Tensor:
    """Find ViM's origin u = -W^+ b: without the bias, logits are W (a - u)."""
    left, sizes, right = head_axes(head)
    counts = sizes > sizes.max() * max(head.weight.shape) * torch.finfo(torch.double).eps
    found: Tensor = -right @ (torch.where(counts, 1 / sizes, 0.0) * (left.T @ head.offset.double()))
    return found


def too_few(classes: Moments) -> str | None:
    """Say what is missing where the classes' common covariance rests on too few images to have full rank; none where it has."""
    # What rounding leaves of a feature that never changes is no change.
    spread = classes.around(classes.mean).diagonal()
    varying = int((spread > classes.mean.square() * torch.finfo(torch.double).eps ** 2 * 1e3).sum())
    present = int(classes.present.sum())
    # The mean of each class takes up one image.
    rank = classes.count - present
    if rank >= varying:
        return None
    return (
        f"the covariance of {varying} features has rank {rank} at most with {classes.count} training images of {present} classes;"
        f" give more than {varying + present}, better ten times as many, or set shrinkage"
    )


@shared
def whitened(points: Tensor, centre: Tensor, whitening: Tensor) -> Tensor:
    """Count points from a centre, and whiten them."""
    return (points - centre) @ whitening


@shared
def class_distance(
    features: Tensor, place: Callable[[Tensor], Tensor], centre: Tensor, whitening: Tensor, means: Tensor
) -> Tensor:
    """Compute the squared Mahalanobis distance of images to the nearest of some whitened means.

    `place` makes points of features, which are counted from the centre; it comes apart, as the same function is known at a glance.
    """
    return nearest_squared((place(features) - centre) @ whitening, means)


def nearest_squared(points: Tensor, means: Tensor) -> Tensor:
    """Compute each whitened point's least squared distance to a whitened mean."""
    # |x - m|^2 = |x|^2 - 2 x m + |m|^2: one matrix product for all classes.
    cross = points @ means.T
    return (points.square().sum(dim=1) + (means.square().sum(dim=1) - 2 * cross).amin(dim=1)).clamp(min=0)


def nearest_cluster(points: Tensor, means: Tensor, whitenings: Tensor) -> Tensor:
    """Compute each point's least squared distance to the mean of a cluster, each with a whitening matrix of its own.

    The matrices of all clusters are one, side by side, a span of whitened directions at a time: upper triangles make the first
    directions of the first features alone.
    """
    clusters, width = means.shape
    centres = (means.unsqueeze(1) @ whitenings).squeeze(1)
    triangles = not torch.compiler.is_exporting() and bool((whitenings.tril(-1) == 0).all())
    spans = []
    for start in range(0, width, SPAN):
        stop = min(start + SPAN, width)
        white = whitenings[:, : stop if triangles else width, start:stop].transpose(0, 1).flatten(1)
        spans.append((white, centres[:, start:stop].flatten()))
    found = []
    for part in row_blocks(points, means.numel()):
        squares = part.new_zeros(len(part), clusters)
        for white, centre in spans:
            apart = torch.addmm(-centre, part[:, : len(white)], white).reshape(len(part), clusters, -1)
            squares += lengths(apart, dim=2).square()
        found.append(squares.amin(dim=1))
    return torch.cat(found)

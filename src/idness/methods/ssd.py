"""SSD -- Sehwag et al., "SSD: A Unified Framework for Self-Supervised Outlier Detection", ICLR 2021."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from idness.core.options import check_at_most_images, count
from idness.core.types import Activations, Head
from idness.detectors.detector import Detector
from idness.detectors.gaussian import nearest_squared, whitening_of
from idness.detectors.kernels import shared, unit

ROUNDS = 100
"""Maximum number of k-means iterations, as in the authors' code."""


@dataclass(kw_only=True)
class SSD(Detector):
    """Negative squared Mahalanobis distance to the nearest of a few clusters, without labels.

    Features are scaled to length 1, then standardized. This is the paper's variant without labels: k-means finds the
    clusters, each with its own covariance. With classes as clusters and one covariance it would be `mdspp`.

    Args:
        clusters: number of clusters; 1 is best in the paper.
    """

    formula = r"-\min_k\, (\tilde a - \mu_k)^\top \Sigma_k^{-1} (\tilde a - \mu_k)"
    assumes = "directions of ID images form a few Gaussian clusters"
    needs_train = True
    grid = {"clusters": (1, 2, 5, 10)}

    clusters: int = count(1)

    def learn(self, head: Head, train: Activations, val: Activations) -> None:
        check_at_most_images(self, "clusters", len(train))
        self.centre_, self.spread_, self.means_, self.whitenings_ = _clustered(train.features, self.clusters)

    def rate(self, acts: Activations) -> Tensor:
        points = (unit(acts.features.double()) - self.centre_) / self.spread_
        whites = self.whitenings_
        means = self.means_.unsqueeze(0 if len(whites) == 1 else 1)  # a single matrix is shared by all clusters
        squares = [nearest_squared(points @ white, some @ white) for some, white in zip(means, whites, strict=True)]
        return -torch.stack(squares).amin(dim=0).float()


@shared
def _clustered(features: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the mean and standard deviation (D,) of the directions, and the means (K, D) and whitening matrices of their clusters."""
    directions = unit(features.double())
    centre = directions.mean(dim=0)
    spread = directions.std(dim=0, correction=0) + 1e-10
    points = (directions - centre) / spread
    owners = k_means(points, count)
    groups = [points[owners == owner] for owner in sorted(set(owners.tolist()))]
    means = torch.stack([group.mean(dim=0) for group in groups])
    # The covariance of a cluster with no more images than features is singular; such clusters use that of all clusters.
    centred = [group - mean for group, mean in zip(groups, means, strict=True)]
    width = features.shape[1]
    small = [len(group) <= width for group in centred]
    pooled = whitening_of(torch.cat(centred))
    whites = [pooled if few else whitening_of(group) for group, few in zip(centred, small, strict=True)]
    # If all clusters use it, it is stored once; narrower matrices are padded with zeros.
    padded = [pad(white, (0, width - white.shape[1])) for white in (whites[:1] if all(small) else whites)]
    return centre, spread, means, torch.stack(padded)


def k_means(points: Tensor, count: int) -> Tensor:
    """Return the cluster (N,) of each point, with the same initial means each time; a cluster may stay empty."""
    starts = torch.randperm(len(points), generator=torch.Generator().manual_seed(0))[:count]
    means = points[starts.to(points.device)]
    owners = torch.zeros(len(points), dtype=torch.long, device=points.device)
    for _ in range(ROUNDS if count > 1 else 0):
        # |x - m|^2 without |x|^2, which does not depend on m.
        found = (means.square().sum(dim=1) - 2 * points @ means.T).argmin(dim=1)
        if torch.equal(found, owners):
            break
        owners = found
        members = one_hot(owners, count).to(points)
        counts = members.sum(dim=0).unsqueeze(1)
        means = torch.where(counts > 0, members.T @ points / counts.clamp(min=1), means)
    return owners

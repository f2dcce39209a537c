"""SSD -- Sehwag et al., "SSD: A Unified Framework for Self-Supervised Outlier Detection", ICLR 2021."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from idness.core.checks import check_at_most_images, count
from idness.core.types import Activations, Head
from idness.detectors.detector import Detector
from idness.detectors.gaussian import nearest_cluster, nearest_squared, whitening_of
from idness.detectors.kernels import unit

ROUNDS = 100
"""Most rounds of k-means, as many as in the authors' code."""


@dataclass(kw_only=True)
class SSD(Detector):
    """Take minus the squared Mahalanobis distance to the nearest of a few clusters, without labels.

    Features get length 1, then mean 0 and variance 1 each. The paper's variant without labels: clusters are found by
    k-means, each with a covariance of its own. With labels as clusters and one covariance it would be `mdspp`.

    Args:
        clusters: how many clusters; the paper finds 1 best.
    """

    formula = r"-\min_k\, (\tilde a - \mu_k)^\top \Sigma_k^{-1} (\tilde a - \mu_k)"
    assumes = "ID images make a few Gaussian clusters, by direction"
    needs_train = True
    grid = {"clusters": (1, 2, 5, 10)}

    clusters: int = count(1)

    def learn(self, head: Head, train: Activations, val: Activations) -> None:
        check_at_most_images(self, "clusters", len(train))
        directions = unit(train.features.double())
        self.centre_ = directions.mean(dim=0)
        self.spread_ = directions.std(dim=0, correction=0) + 1e-10
        points = self._place(train.features)
        owners = k_means(points, self.clusters)
        groups = [points[owners == owner] for owner in sorted(set(owners.tolist()))]
        self.means_ = torch.stack([group.mean(dim=0) for group in groups])
        # A cluster with no more images than features has directions without any spread, which would count nothing:
        # all clusters serve it, and where that goes for each, one matrix is enough.
        centred = [group - mean for group, mean in zip(groups, self.means_, strict=True)]
        serving = [[group] if len(group) > head.width else centred for group in centred]
        served = serving if any(each is not centred for each in serving) else [centred]
        whites = [whitening_of(each) for each in served]
        # Narrower matrices are filled up with zeros.
        self.whitenings_ = torch.stack([pad(white, (0, head.width - white.shape[1])) for white in whites])

    def _place(self, features: Tensor) -> Tensor:
        return (unit(features.double()) - self.centre_) / self.spread_

    def rate(self, acts: Activations) -> Tensor:
        points = self._place(acts.features)
        if len(self.whitenings_) == 1:
            [white] = self.whitenings_.unbind()
            return -nearest_squared(points @ white, self.means_ @ white).float()
        return -nearest_cluster(points, self.means_, self.whitenings_).float()


def k_means(points: Tensor, count: int) -> Tensor:
    """Find the cluster of each point, from starts that are the same each time; a cluster may stay empty."""
    starts = torch.randperm(len(points), generator=torch.Generator().manual_seed(0))[:count]
    means = points[starts.to(points.device)]
    owners = torch.zeros(len(points), dtype=torch.long, device=points.device)
    for _ in range(ROUNDS if count > 1 else 0):
        # |x - m|^2 without |x|^2, which is the same for all m.
        found = (means.square().sum(dim=1) - 2 * points @ means.T).argmin(dim=1)
        if torch.equal(found, owners):
            break
        owners = found
        members = one_hot(owners, count).to(points)
        counts = members.sum(dim=0).unsqueeze(1)
        means = torch.where(counts > 0, members.T @ points / counts.clamp(min=1), means)
    return owners

import numpy as np
import pytest
import torch

from idness.detectors.gaussian import whitening_of
from idness.methods import SSD
from idness.methods.ssd import k_means


def slow_points(train, acts):
    """Length 1, then mean 0 and variance 1 over the training images."""
    unit = [f.double().numpy() / np.linalg.norm(f.double().numpy(), axis=1, keepdims=True) for f in (train, acts)]
    return [(u - unit[0].mean(axis=0)) / unit[0].std(axis=0) for u in unit]


def slow_distance(x, group, covariance):
    return float((x - group.mean(axis=0)) @ np.linalg.pinv(covariance) @ (x - group.mean(axis=0)))


@pytest.mark.parametrize(("clusters", "images"), [(1, 600), (3, 600), (8, 200)])
def test_it_is_the_distance_to_the_nearest_cluster_and_small_clusters_share_a_covariance(world, clusters, images):
    train, test = slow_points(world.train.features[:images], world.test.features)
    owners = k_means(torch.from_numpy(train), clusters).numpy()
    groups = [train[owners == owner] for owner in sorted(set(owners.tolist()))]
    pooled = np.concatenate([group - group.mean(axis=0) for group in groups])
    few = images < 600
    assert all((len(group) <= world.head.width) == few for group in groups)
    scores = SSD(clusters=clusters).fit(world.head, world.train[:images]).score(world.test)
    for x, score in zip(test[:60], scores.tolist(), strict=False):
        covariances = [pooled.T @ pooled / len(pooled) if few else np.cov(group.T, bias=True) for group in groups]
        expected = -min(slow_distance(x, group, each) for group, each in zip(groups, covariances, strict=True))
        assert score == pytest.approx(expected, rel=1e-4)


def test_k_means_ends_where_each_point_is_nearest_to_its_own_mean_and_begins_the_same_each_time():
    rng = torch.Generator().manual_seed(4)
    points = torch.cat([torch.randn(50, 3, generator=rng) + 6 * shift for shift in torch.eye(3)]).double()
    owners = k_means(points, 3)
    means = torch.stack([points[owners == owner].mean(dim=0) for owner in range(3)])
    assert torch.equal(torch.cdist(points, means).argmin(dim=1), owners)
    torch.manual_seed(7)
    assert torch.equal(k_means(points, 3), owners)


@pytest.mark.parametrize("doubled", [0, 3])
@pytest.mark.parametrize("sizes", [(20,), (9, 1, 10)])
def test_few_rows_are_whitened_as_many_are(world, sizes, doubled):
    """Fewer rows than columns, some of them twice, give the distances of the pseudo-inverse."""
    groups = list(world.train.features[: sum(sizes)].double().split(sizes))
    groups[-1] = torch.cat([groups[-1], groups[-1][:doubled]])
    groups = [group - group.mean(dim=0) for group in groups]
    centred = torch.cat(groups)
    assert len(centred) < world.head.width
    inverse = torch.linalg.pinv(centred.T @ centred / len(centred), hermitian=True, rtol=1e-12)
    points = world.test.features.double()
    expected = ((points @ inverse) * points).sum(dim=1)
    torch.testing.assert_close((points @ whitening_of(centred)).square().sum(dim=1), expected, rtol=1e-6, atol=0)

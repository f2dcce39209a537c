import pytest
from scipy.linalg import pinvh

from idness.methods import RMDSPP
from tests.methods.test_mahalanobis import distance, slow_parts
from tests.methods.test_mdspp import unit


def test_it_is_rmds_of_directions(world):
    means, precision, points = slow_parts(unit(world.train))
    middle = points.mean(axis=0)
    background = pinvh((points - middle).T @ (points - middle) / len(points))
    scores = RMDSPP(shrinkage=0).fit(world.head, world.train).score(world.test)
    for x, score in zip(unit(world.test).features.double().numpy(), scores.tolist(), strict=True):
        expected = max(-distance(x, mean, precision) + distance(x, middle, background) for mean in means)
        assert score == pytest.approx(expected, rel=1e-3, abs=1e-2)

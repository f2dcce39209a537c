import pytest
import torch
from scipy.linalg import pinvh

from idness.core.types import Activations
from idness.methods import RMDS, RMDSPP
from tests.methods.test_mahalanobis import distance, slow_parts
from tests.methods.test_mdspp import unit


def test_it_is_rmds_of_directions(world):
    means, precision, points = slow_parts(unit(world.train))
    middle = points.mean(axis=0)
    background = pinvh((points - middle).T @ (points - middle) / len(points))
    scores = RMDSPP().fit(world.head, world.train).score(world.test)
    for x, score in zip(unit(world.test).features.double().numpy(), scores.tolist(), strict=True):
        expected = max(-distance(x, mean, precision) + distance(x, middle, background) for mean in means)
        assert score == pytest.approx(expected, rel=1e-3, abs=1e-2)


def test_the_length_of_an_images_features_does_not_matter_unlike_in_rmds(world):
    longer = Activations(world.test.features * 7, world.test.logits)
    for method, same in ((RMDSPP, True), (RMDS, False)):
        detector = method().fit(world.head, world.train)
        assert torch.allclose(detector.score(longer), detector.score(world.test), rtol=1e-3, atol=1e-3) is same

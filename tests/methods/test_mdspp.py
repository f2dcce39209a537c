import pytest
import torch

from idness.core.types import Activations
from idness.methods import MDS, MDSPP
from tests.methods.test_mahalanobis import distance, slow_parts


def unit(acts):
    features = acts.features.double()
    return Activations(features / features.norm(dim=1, keepdim=True), acts.logits, acts.labels)


def test_it_is_the_distance_to_the_nearest_class_of_directions(world):
    means, precision, _ = slow_parts(unit(world.train))
    scores = MDSPP(shrinkage=0).fit(world.head, world.train).score(world.test)
    for x, score in zip(unit(world.test).features.double().numpy(), scores.tolist(), strict=True):
        assert score == pytest.approx(-min(distance(x, mean, precision) for mean in means), rel=1e-3)


def test_the_length_of_an_images_features_does_not_matter_unlike_in_mds(world):
    longer = Activations(world.test.features * 1e25, world.test.logits)
    scores = MDSPP().fit(world.head, world.train).score(world.test)
    torch.testing.assert_close(MDSPP().fit(world.head, world.train).score(longer), scores, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(MDS().fit(world.head, world.train).score(world.test), scores, rtol=0.1)

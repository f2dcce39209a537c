import pytest
import torch

from idness.core.errors import InputError
from idness.core.types import Activations
from idness.detectors.detector import score_many
from idness.methods import KNN


@pytest.mark.parametrize("k", [1, 7, 50])
def test_it_is_the_distance_to_the_kth_training_image(world, k):
    unit = world.train.features / world.train.features.norm(dim=1, keepdim=True)
    scores = KNN(k=k).fit(world.head, world.train).score(world.test[:40])
    for x, score in zip(world.test.features[:40], scores.tolist(), strict=True):
        distances = sorted(float(((x / x.norm() - row) ** 2).sum()) for row in unit)
        assert score == pytest.approx(-distances[k - 1], abs=1e-5)


def test_the_length_of_features_does_not_matter(world):
    detector = KNN(k=5).fit(world.head, world.train)
    longer = Activations(world.test.features * 7, world.test.logits)
    torch.testing.assert_close(detector.score(longer), detector.score(world.test), rtol=1e-4, atol=1e-5)


def test_detectors_of_different_training_sets_are_not_mixed_up(world):
    first, second = KNN(k=5).fit(world.head, world.train), KNN(k=3).fit(world.head, world.val)
    for detector, scores in zip((first, second), score_many([first, second], world.test), strict=True):
        assert torch.equal(detector.score(world.test), scores)


def test_more_neighbours_than_images_are_refused(world):
    with pytest.raises(InputError, match=r"k must be at most the number of training images \(30\), got 31"):
        KNN(k=31).fit(world.head, world.train[:30])
    assert KNN(k=30).fit(world.head, world.train[:30]).score(world.test).isfinite().all()

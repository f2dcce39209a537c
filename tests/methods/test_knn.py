import pytest

from idness.methods import KNN


@pytest.mark.parametrize("k", [1, 7, 50])
def test_it_is_the_distance_to_the_kth_training_image(world, k):
    unit = world.train.features / world.train.features.norm(dim=1, keepdim=True)
    scores = KNN(k=k).fit(world.head, world.train).score(world.test[:40])
    for x, score in zip(world.test.features[:40], scores.tolist(), strict=True):
        distances = sorted(float(((x / x.norm() - row) ** 2).sum()) for row in unit)
        assert score == pytest.approx(-distances[k - 1], abs=1e-5)

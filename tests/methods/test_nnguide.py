import math

import pytest

from idness.methods import NNGuide


def slow_energy(logits):
    return math.log(sum(math.exp(z) for z in logits.tolist()))


@pytest.mark.parametrize("k", [1, 10, 77])
def test_it_is_the_energy_times_the_weighted_similarity_of_neighbours(world, k):
    bank = [
        (row / row.norm(), slow_energy(logits))
        for row, logits in zip(world.train.features.double(), world.train.logits.double(), strict=True)
    ]
    test = world.test[:40]
    scores = NNGuide(k=k).fit(world.head, world.train).score(test)
    for x, logits, score in zip(test.features.double(), test.logits.double(), scores.tolist(), strict=True):
        guided = sorted((weight * float(row @ x / x.norm()) for row, weight in bank), reverse=True)
        assert score == pytest.approx(slow_energy(logits) * sum(guided[:k]) / k, rel=1e-4)

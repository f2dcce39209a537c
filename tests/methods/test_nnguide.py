import math

import pytest
import torch

from idness.core.errors import InputError
from idness.core.types import Activations
from idness.methods import EBO, NNGuide


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


def test_a_confident_image_in_an_unusual_direction_is_held_back(world):
    """Its energy is that of an ID image, its neighbours are none."""
    detector = NNGuide().fit(world.head, world.train)
    unseen = torch.linalg.svd(world.head.weight).Vh[-1]
    moved = world.test.features + 20 * unseen
    away = Activations(moved, world.head(moved))
    energies = EBO().fit(world.head)
    torch.testing.assert_close(energies.score(away), energies.score(world.test), rtol=1e-3, atol=1e-3)
    assert (detector.score(away) < detector.score(world.test)).all()


def test_more_neighbours_than_images_are_refused(world):
    with pytest.raises(InputError, match=r"k must be at most the number of training images \(9\), got 10"):
        NNGuide().fit(world.head, world.train[:9])
    assert NNGuide(k=9).fit(world.head, world.train[:9]).score(world.test).isfinite().all()

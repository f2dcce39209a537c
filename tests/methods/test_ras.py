import math

import pytest
import torch

from idness.methods import RAS


def slow_shape(row, profile):
    """The smallest feature gets the smallest value of the profile, and so on; among equals the first comes first."""
    shaped = [0.0] * len(row)
    for rank, place in enumerate(sorted(range(len(row)), key=lambda j: (row[j], j))):
        shaped[place] = profile[rank]
    return shaped


def test_it_replaces_sorted_features_by_the_mean_sorted_training_features(world):
    rows = [sorted(row) for row in world.train.features.tolist()]
    profile = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    detector = RAS().fit(world.head, world.train)
    shaped = detector.shape(world.test.features)
    for row, ours, score in zip(world.test.features.tolist(), shaped, detector.score(world.test).tolist(), strict=True):
        expected = torch.tensor(slow_shape(row, profile))
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)
        logits = (world.head.weight @ expected + world.head.bias).tolist()
        assert score == pytest.approx(math.log(sum(math.exp(z) for z in logits)), rel=1e-4)

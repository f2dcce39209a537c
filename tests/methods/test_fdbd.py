import math

import pytest
import torch

from idness.core.types import Activations, Head
from idness.methods import FDBD


def test_it_is_the_mean_distance_to_the_boundaries_over_that_from_the_mean_image(world):
    mean = world.train.features.double().mean(dim=0)
    weight, bias = world.head.weight.double(), world.head.bias.double()
    scores = FDBD().fit(world.head, world.train).score(world.test)
    for x, score in zip(world.test.features.double(), scores.tolist(), strict=True):
        logits = [float(weight[c] @ x + bias[c]) for c in range(5)]
        best = max(range(5), key=logits.__getitem__)
        distances = []
        for c in range(5):
            if c != best:
                apart = math.sqrt(sum(float(v) ** 2 for v in weight[best] - weight[c]))
                distances.append((logits[best] - logits[c]) / apart)
        expected = sum(distances) / len(distances) / float((x - mean).norm())
        assert score == pytest.approx(expected, rel=1e-4)


def test_classes_with_the_same_weights_and_single_classes_have_no_boundary(world):
    def scores(head):
        train, test = (Activations(a.features, head(a.features)) for a in (world.train, world.test))
        return FDBD().fit(head, train).score(test)

    weight, bias = world.head.weight, world.head.bias
    assert (scores(Head(weight[:1], bias[:1])) == 0).all()
    # Every class twice: of nine boundaries one is missing, the others are four, twice.
    twice = scores(Head(torch.cat([weight, weight]), torch.cat([bias, bias])))
    torch.testing.assert_close(twice, scores(world.head) * 8 / 9, rtol=1e-4, atol=1e-5)

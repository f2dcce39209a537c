import math

import pytest
import torch

from idness.core.types import Activations, Head
from idness.methods import Relation
from tests.methods.test_klm import slow_softmax


def slow_relation(x, y, p, q):
    cosine = sum(a * b for a, b in zip(x, y, strict=True)) / (math.hypot(*x) * math.hypot(*y))
    return max(0.0, cosine) * sum(a * b for a, b in zip(p, q, strict=True))


@pytest.mark.parametrize("power", [1.0, 2.0, 8.0])
def test_it_is_the_mean_relation_to_training_images_without_weak_ones(world, power):
    train, test = world.train[:100], world.test[:30]
    scores = Relation(power=power).fit(world.head, train).score(test)
    bank = list(zip(train.features.tolist(), map(slow_softmax, train.logits.tolist()), strict=True))
    for x, z, score in zip(test.features.tolist(), test.logits.tolist(), scores.tolist(), strict=True):
        relations = [slow_relation(x, y, slow_softmax(z), q) for y, q in bank]
        expected = sum(relation**power for relation in relations if relation > 0.03) / len(relations)
        assert score == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("width", "expected"), [(64, 0.0), (16, 0.2 / 4)])
def test_weak_relations_do_not_add_up(width, expected):
    """A network of five classes that is never sure: probabilities give 0.2, the cosine of an even image 1 / sqrt(D)."""
    head = Head(torch.zeros(5, width))
    train, even = (Activations(rows, head(rows)) for rows in (torch.eye(width), torch.ones(1, width)))
    assert Relation().fit(head, train).score(even).item() == pytest.approx(expected)

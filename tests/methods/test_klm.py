import math

import pytest
import torch

from idness.core.types import Activations, Head
from idness.methods import KLM


def slow_softmax(row):
    total = sum(math.exp(z - max(row)) for z in row)
    return [math.exp(z - max(row)) / total for z in row]


def slow_templates(acts):
    """The mean probabilities of the images that are taken for each class."""
    groups = {}
    for row in acts.logits.double().tolist():
        groups.setdefault(row.index(max(row)), []).append(slow_softmax(row))
    return [[sum(column) / len(rows) for column in zip(*rows, strict=True)] for rows in groups.values()]


def slow_divergence(p, d):
    return sum(a * math.log(a / b) for a, b in zip(p, d, strict=True) if a > 0)


@pytest.mark.parametrize("with_val", [True, False])
def test_it_is_the_least_divergence_from_the_usual_probabilities_of_a_class(world, with_val):
    templates = slow_templates(world.val if with_val else world.train)
    detector = KLM().fit(world.head, world.train, val=world.val if with_val else None)
    for row, score in zip(world.test.logits.double().tolist(), detector.score(world.test).tolist(), strict=True):
        expected = -min(slow_divergence(slow_softmax(row), template) for template in templates)
        assert score == pytest.approx(expected, rel=1e-4, abs=1e-7)


def test_labels_are_not_used_and_classes_that_are_never_predicted_have_no_template(world):
    bare = Activations(world.train.features, world.train.logits)
    kept = bare[bare.logits.argmax(dim=1) != 3]
    detector = KLM().fit(world.head, kept)
    assert len(detector.templates_) == world.head.classes - 1
    assert detector.score(world.test).isfinite().all()


def test_probabilities_below_what_floating_point_holds_still_count():
    """All images are sure of one of the first two classes; exp(-2000) is 0, and the divergence is 2000 all the same."""
    head = Head(torch.eye(3))
    train = torch.tensor([[2000.0, 0.0, 0.0], [0.0, 2000.0, 0.0]])
    odd = torch.tensor([[0.0, 0.0, 2000.0], [2000.0, 0.0, 0.0]])
    scores = KLM().fit(head, Activations(train, train)).score(Activations(odd, odd))
    assert scores.tolist() == pytest.approx([-2000.0, 0.0])

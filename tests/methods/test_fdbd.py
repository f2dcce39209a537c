import math

import pytest
import torch

from idness.core.types import Activations, Head
from idness.methods import FDBD
from idness.methods.fdbd import _distances


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


def test_a_point_on_the_boundary_of_two_classes_scores_zero():
    head = Head(torch.tensor([[3.0, 1.0], [1.0, 3.0]]))
    train = torch.tensor([[1.0, 0.0], [0.0, 1.0], [4.0, 4.0]])
    detector = FDBD().fit(head, Activations(train, head(train)))
    on = torch.tensor([[2.0, 2.0], [7.0, 7.0]])
    assert detector.score(Activations(on, head(on))).tolist() == pytest.approx([0.0, 0.0], abs=1e-6)


def test_a_boundary_is_as_far_as_a_step_to_it():
    """The closed form is the length of the shortest step that makes two logits equal."""
    head = Head(torch.tensor([[3.0, 1.0], [1.0, 2.0]]), torch.tensor([0.5, -0.5]))
    train = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    detector = FDBD().fit(head, Activations(train, head(train)))
    x = torch.tensor([[2.0, 1.0]])
    score = detector.score(Activations(x, head(x))).item()
    step = score * float((x - train.mean(dim=0)).norm())
    across = (head.weight[1] - head.weight[0]) / (head.weight[1] - head.weight[0]).norm()
    reached = head(x + step * across).squeeze(0)
    assert reached[0].item() == pytest.approx(reached[1].item(), rel=1e-5)


def test_classes_with_the_same_weights_and_single_classes_have_no_boundary(world):
    def scores(head):
        train, test = (Activations(a.features, head(a.features)) for a in (world.train, world.test))
        return FDBD().fit(head, train).score(test)

    weight, bias = world.head.weight, world.head.bias
    assert (scores(Head(weight[:1], bias[:1])) == 0).all()
    # Every class twice: of nine boundaries one is missing, the others are four, twice.
    twice = scores(Head(torch.cat([weight, weight]), torch.cat([bias, bias])))
    torch.testing.assert_close(twice, scores(world.head) * 8 / 9, rtol=1e-4, atol=1e-5)


def test_classes_that_differ_by_next_to_nothing_are_measured_as_exactly_as_others(world):
    """A matrix product alone would lose the small differences of long rows."""
    rows = world.head.weight.double().repeat(3, 1) * 1e3
    rows[5:10] += 1e-5
    expected = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
    torch.testing.assert_close(_distances(rows), expected, rtol=1e-9, atol=0)
    assert not _distances(rows).diagonal().any()

import numpy as np
import pytest
import torch

from idness.methods import WeiPer, weiper
from idness.methods.weiper import histogram


def slow_histogram(values, low, high):
    """Shares of all values, those outside too, in 100 bins."""
    return np.histogram(values, bins=100, range=(low, high))[0] / len(values)


def slow_smooth(row, window):
    """The mean of a window around each bin; beyond the ends the row is continued."""
    left = (window - 1) // 2
    return [np.mean([row[min(max(i - left + t, 0), 99)] for t in range(window)]) for i in range(100)]


def slow_divergence(usual, row, window, floor):
    p = np.array(usual) + floor
    q = np.array(slow_smooth(row, window)) + floor
    p, q = p / p.sum(), q / q.sum()
    return float(np.sum(p * np.log(p / q)) + np.sum(q * np.log(q / p)))


def slow_logits(row, detector, head):
    """One list of logits for each perturbed head."""
    weights = detector.weights_.numpy().reshape(detector.repeats, head.classes, head.width)
    return weights @ row + head.bias.double().numpy()


@pytest.mark.parametrize("options", [{}, {"delta": 0.7, "s_1": 9, "s_2": 1, "lambda_1": 0.3, "lambda_2": 4.0}])
def test_it_compares_two_histograms_and_adds_the_mean_largest_probability(world, options):
    detector = WeiPer(repeats=12, **options).fit(world.head, world.train)
    train = world.train.features.double().numpy()
    logits = [slow_logits(row, detector, world.head) for row in train]
    spans = [(np.min(values), np.max(values)) for values in (train, logits)]
    usual = [
        np.mean([slow_histogram(np.ravel(row), *span) for row in rows], axis=0)
        for rows, span in zip((train, logits), spans, strict=True)
    ]
    scores = detector.score(world.test[:40])
    for row, score in zip(world.test.features.double().numpy(), scores.tolist(), strict=False):
        perturbed = slow_logits(row, detector, world.head)
        powers = np.exp(perturbed - perturbed.max(axis=1, keepdims=True))
        sure = np.mean(powers.max(axis=1) / powers.sum(axis=1))
        far = slow_divergence(usual[0], slow_histogram(row, *spans[0]), detector.s_1, 0.01)
        further = slow_divergence(usual[1], slow_histogram(perturbed.ravel(), *spans[1]), detector.s_2, 0.025)
        assert score == pytest.approx(detector.lambda_2 * sure - far - detector.lambda_1 * further, rel=1e-4, abs=1e-5)


def test_perturbations_are_as_long_as_asked_differ_from_each_other_and_are_the_same_each_time(world):
    detector = WeiPer(delta=1.8, repeats=6).fit(world.head, world.train)
    steps = (detector.weights_ - world.head.weight.repeat(6, 1)).reshape(6, *world.head.weight.shape)
    expected = 1.8 * world.head.weight.double().norm(dim=1).expand(6, -1)
    torch.testing.assert_close(steps.norm(dim=2), expected, rtol=1e-5, atol=0)
    directions = torch.nn.functional.normalize(steps.flatten(0, 1), dim=1)
    assert float((directions @ directions.T - torch.eye(len(directions)).double()).abs().max()) < 0.7
    torch.manual_seed(5)
    assert torch.equal(WeiPer(delta=1.8, repeats=6).fit(world.head, world.train).weights_, detector.weights_)


def test_many_classes_get_fewer_heads_so_that_there_are_enough_perturbed_logits_and_no_more(world):
    few = WeiPer(repeats=6, most=2 * world.head.classes + 1).fit(world.head, world.train)
    assert torch.equal(few.weights_, WeiPer(repeats=2).fit(world.head, world.train).weights_)
    one = WeiPer(repeats=6, most=1).fit(world.head, world.train)
    assert len(one.weights_) == world.head.classes
    assert one.score(world.test).isfinite().all()


def test_thousands_of_perturbed_logits_are_computed_in_single_precision_and_score_alike(world, monkeypatch):
    exact = WeiPer(repeats=12).fit(world.head, world.train).score(world.test)
    monkeypatch.setattr(weiper, "EXACT", 0)
    detector = WeiPer(repeats=12).fit(world.head, world.train)
    assert detector.weights_.dtype == torch.float32
    torch.testing.assert_close(detector.score(world.test), exact, rtol=0.02, atol=0.02)


def test_histograms_are_those_of_numpy_without_values_outside():
    values = torch.randn(7, 300, generator=torch.Generator().manual_seed(0)).double()
    ours = histogram(values, torch.tensor([-1.0, 2.0]).double(), 20)
    for row, found in zip(values.numpy(), ours.numpy(), strict=True):
        np.testing.assert_allclose(found, np.histogram(row, bins=20, range=(-1, 2))[0] / 300)
    assert (ours.sum(dim=1) < 1).all()
    span = torch.tensor([-3.0, 5.0]).double()
    assert histogram(span.unsqueeze(0), span, 8)[0].tolist() == [0.5, 0, 0, 0, 0, 0, 0, 0.5]  # both ends are inside
    same = torch.full((1, 4), 2.5).double()
    assert histogram(same, torch.tensor([2.5, 2.5]).double(), 5)[0].tolist() == [1, 0, 0, 0, 0]
    assert histogram(same * 1e30, span, 5).sum() == 0

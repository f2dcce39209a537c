import math

import numpy as np
import pytest

from idness.methods import ActSub
from tests.worlds import make_world


def slow_basis(weight, features):
    """The paper's split: the number of directions at which both parts are equally long on average."""
    _, _, directions = np.linalg.svd(weight, full_matrices=False)
    gaps = []
    for count in range(1, len(directions) + 1):
        basis = directions[:count]
        inside = [np.linalg.norm(basis.T @ (basis @ x)) for x in features]
        outside = [np.linalg.norm(x - basis.T @ (basis @ x)) for x in features]
        gaps.append(abs(np.mean(inside) - np.mean(outside)))
    return directions[: int(np.argmin(gaps)) + 1]


def slow_score(x, head, bank, basis, percentile, power, k):
    decisive = basis.T @ (basis @ x)
    rest = x - decisive
    cosines = sorted(
        (float(rest @ y / np.linalg.norm(rest) / np.linalg.norm(y)) for y in bank - bank @ basis.T @ basis),
        reverse=True,
    )
    kept = len(x) - round(len(x) * percentile / 100)
    ratio = decisive.sum() / sum(sorted(decisive, reverse=True)[:kept])
    logits = head.weight.double().numpy() @ (decisive * math.exp(ratio)) + head.bias.double().numpy()
    nearness = -math.log(1 - sum(cosines[:k]) / k)
    return math.log(sum(math.exp(z) for z in logits)) * nearness**power


@pytest.mark.parametrize(("percentile", "power", "k"), [(85.0, 2.0, 10), (65.0, 0.5, 1), (90.0, 1.0, 25)])
def test_it_scores_as_the_paper_writes(world, percentile, power, k):
    bank = world.train.features.double().numpy()
    basis = slow_basis(world.head.weight.double().numpy(), bank)
    detector = ActSub(percentile=percentile, power=power, k=k).fit(world.head, world.train)
    assert detector.basis_.shape == (world.head.width, len(basis))
    test = world.test[:30]
    for x, score in zip(test.features.double().numpy(), detector.score(test).tolist(), strict=True):
        expected = slow_score(x, world.head, bank, basis, percentile, power, k)
        assert score == pytest.approx(expected, rel=1e-3)


def test_fewer_directions_are_decisive_where_there_are_many_classes():
    """Here the head sees every direction, and the split falls in between."""
    world = make_world(width=16, classes=30)
    bank = world.train.features.double().numpy()
    detector = ActSub().fit(world.head, world.train)
    assert detector.basis_.shape[1] == len(slow_basis(world.head.weight.double().numpy(), bank)) < 16

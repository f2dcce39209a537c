import math

import pytest

from idness.methods import GEN


@pytest.mark.parametrize(("gamma", "m"), [(0.1, 100), (0.5, 3), (2.0, 1)])
def test_it_is_the_negative_generalised_entropy(world, gamma, m):
    scores = GEN(gamma=gamma, m=m).fit(world.head).score(world.test)
    for row, score in zip(world.test.logits.double().tolist(), scores.tolist(), strict=True):
        total = sum(math.exp(z) for z in row)
        largest = sorted((math.exp(z) / total for z in row), reverse=True)[:m]
        expected = -sum(q**gamma * (1 - q) ** gamma for q in largest)
        assert score == pytest.approx(expected, rel=1e-3, abs=1e-5)

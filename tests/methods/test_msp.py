import math

import pytest

from idness.methods import MSP


def test_it_is_the_largest_softmax_probability(world):
    scores = MSP().fit(world.head).score(world.test)
    for row, score in zip(world.test.logits.tolist(), scores.tolist(), strict=True):
        total = sum(math.exp(z) for z in row)
        assert score == pytest.approx(max(math.exp(z) / total for z in row), rel=1e-5)

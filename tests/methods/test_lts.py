import math

import pytest

from idness.methods import LTS
from tests.worlds import make_world


@pytest.mark.parametrize("percent", [10.0, 65.0, 95.0])
@pytest.mark.parametrize("signed", [False, True])
def test_it_scores_as_the_paper_writes(percent, signed):
    world = make_world(signed=signed)
    scores = LTS(percentile=percent).fit(world.head).score(world.test)
    for row, logits, score in zip(world.test.features.tolist(), world.test.logits, scores.tolist(), strict=True):
        rectified = [max(a, 0.0) for a in row]
        kept = len(row) - round(len(row) * percent / 100)
        factor = (sum(rectified) / sum(sorted(rectified, reverse=True)[:kept])) ** 2
        scaled = [factor * z for z in logits.double().tolist()]
        highest = max(scaled)
        expected = highest + math.log(sum(math.exp(z - highest) for z in scaled))
        assert score == pytest.approx(expected, rel=1e-4)

import math

import numpy as np
import pytest
import torch

from idness.methods import DICE


@pytest.mark.parametrize("percent", [10.0, 70.0, 90.0])
def test_it_keeps_the_weights_that_contribute_most(world, percent):
    mean = world.train.features.double().mean(dim=0).tolist()
    weight = world.head.weight.tolist()
    contribution = [[mean[j] * weight[c][j] for j in range(len(mean))] for c in range(len(weight))]
    limit = np.percentile(contribution, percent)
    masked = torch.tensor(
        [
            [w if v > limit else 0.0 for w, v in zip(ws, vs, strict=True)]
            for ws, vs in zip(weight, contribution, strict=True)
        ]
    )
    detector = DICE(percentile=percent).fit(world.head, world.train)
    assert torch.equal(detector.weight_, masked)
    assert float((masked == 0).double().mean()) == pytest.approx(percent / 100, abs=0.01)
    for x, score in zip(world.test.features, detector.score(world.test).tolist(), strict=True):
        logits = (masked @ x + world.head.bias).tolist()
        assert score == pytest.approx(math.log(sum(math.exp(z) for z in logits)), rel=1e-4)

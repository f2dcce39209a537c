import math

import numpy as np
import pytest
import torch

from idness.methods import VRA


@pytest.mark.parametrize(("low", "high"), [(50.0, 90.0), (60.0, 99.0)])
def test_low_activations_become_zero_and_high_ones_are_clipped(world, low, high):
    detector = VRA(low=low, high=high).fit(world.head, world.train, val=world.val)
    floor, clip = np.percentile(world.val.features.numpy(), [low, high])
    for row, score in zip(world.test.features.tolist(), detector.score(world.test).tolist(), strict=True):
        shaped = torch.tensor([0.0 if a < floor else min(a, float(clip)) for a in row])
        logits = (world.head.weight @ shaped + world.head.bias).tolist()
        assert score == pytest.approx(math.log(sum(math.exp(z) for z in logits)), rel=1e-4)

import math

import numpy as np
import pytest
import torch

from idness.methods import OptFS


def slow_factors(train, head, bins):
    """Bin after bin: the mean over images of what features of that size add to the predicted class's logit."""
    features = train.features.numpy().astype(float)
    low, high = np.quantile(features, [0.001, 0.999])
    width = (high - low) / bins
    weights = head.weight.double().numpy()[train.logits.argmax(dim=1).numpy()]
    gains = []
    for index in range(bins):
        inside = (features >= low + index * width) & (features < low + (index + 1) * width)
        gains.append(float(np.mean(np.sum(inside * weights * features, axis=1))))
    return low, width, 1000 * np.array(gains) / np.linalg.norm(gains)


@pytest.mark.parametrize("bins", [100, 7])
def test_factors_and_scores_are_those_of_the_closed_form(world, bins):
    low, width, factors = slow_factors(world.train, world.head, bins)
    detector = OptFS(bins=bins).fit(world.head, world.train)
    np.testing.assert_allclose(detector.factors_.numpy(), factors, rtol=1e-3, atol=0.5)
    scores = detector.score(world.test)
    for row, score in zip(world.test.features.tolist(), scores.tolist(), strict=True):
        places = [math.floor((a - low) / width) for a in row]
        shaped = [a * factors[place] if 0 <= place < bins else 0.0 for a, place in zip(row, places, strict=True)]
        logits = world.head.weight.double() @ torch.tensor(shaped, dtype=torch.double) + world.head.bias.double()
        assert score == pytest.approx(float(logits.logsumexp(0)), rel=2e-3)


def test_features_outside_the_bins_become_zero(world):
    detector = OptFS().fit(world.head, world.train)
    outside = torch.tensor([[-5.0, 1e6] * (world.head.width // 2)])
    assert torch.equal(detector.shape(outside), torch.zeros_like(outside))

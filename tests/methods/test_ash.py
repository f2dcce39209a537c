import math

import pytest
import torch

from idness.core.types import Activations
from idness.methods import Ash


def slow_shape(row, percent, variant):
    """Activation by activation, as the paper's algorithms are written."""
    kept = len(row) - round(len(row) * percent / 100)
    chosen = sorted(range(len(row)), key=lambda j: -row[j])[:kept]
    before, after = sum(row), sum(row[j] for j in chosen)
    value = {"s": lambda j: row[j] * math.exp(before / after), "p": lambda j: row[j], "b": lambda j: before / kept}[
        variant
    ]
    return [value(j) if j in chosen else 0.0 for j in range(len(row))]


@pytest.mark.parametrize("variant", ["s", "p", "b"])
@pytest.mark.parametrize("percent", [65.0, 90.0])
def test_it_shapes_as_the_paper_writes(world, variant, percent):
    detector = Ash(variant=variant, percentile=percent).fit(world.head)
    shaped = detector.shape(world.test.features)
    for row, ours, score in zip(world.test.features.tolist(), shaped, detector.score(world.test).tolist(), strict=True):
        expected = torch.tensor(slow_shape(row, percent, variant))
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
        logits = (world.head.weight @ expected + world.head.bias).double()
        assert score == pytest.approx(float(logits.logsumexp(0)), rel=1e-4)


def test_levelled_features_are_never_more_than_are_kept(world):
    """Rows with fewer positive features than are kept: ties at zero must not raise the count."""
    features = torch.zeros(1, world.head.width)
    features[0, :3] = torch.tensor([3.0, 2.0, 1.0])
    detector = Ash(variant="b", percentile=80.0).fit(world.head)
    shaped = detector.shape(features)
    assert int((shaped > 0).sum()) == world.head.width - round(world.head.width * 0.8)
    assert detector.score(Activations(features, world.head(features))).isfinite().all()

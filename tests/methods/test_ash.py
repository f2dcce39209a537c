import math

import pytest
import torch

from idness.core.types import Activations
from idness.detectors import pruning
from idness.detectors.detector import fit_many, score_many
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
@pytest.mark.parametrize("many", [1, 1000])
def test_it_shapes_as_the_paper_writes(world, variant, percent, many, monkeypatch):
    """Also as it is computed where so few classes are many."""
    monkeypatch.setattr(pruning, "CLASSES", many)
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


def test_variants_that_score_together_share_a_product_and_score_as_alone(world, monkeypatch):
    together = [Ash(variant=variant, percentile=percent) for percent in (0.0, 65.0, 90.0) for variant in "spb"]
    together.append(Ash(variant="s", percentile=90.0, readout="msp"))
    fit_many(together, world.head)
    alone = [detector.score(world.test) for detector in together]
    products = []
    call = type(world.head).__call__
    monkeypatch.setattr(type(world.head), "__call__", lambda *words: products.append(1) or call(*words))
    for scores, expected in zip(score_many(together, world.test), alone, strict=True):
        torch.testing.assert_close(scores, expected)
    assert len(products) <= 3 + 3 + 1  # s and p share one at each percentile; one checks the activations

import math

import pytest
import torch

from idness.core.types import Activations, Head
from idness.methods import CADRef

READ = {
    "energy": lambda z: math.log(sum(math.exp(v) for v in z)),
    "msp": lambda z: max(math.exp(v) for v in z) / sum(math.exp(v) for v in z),
    "max_logit": max,
}


@pytest.mark.parametrize("readout", list(READ))
def test_it_scores_as_the_paper_writes(world, readout):
    train = world.train
    predicted = train.logits.argmax(dim=1).tolist()
    means = {}
    for c in range(5):
        rows = [x for x, p in zip(train.features.double(), predicted, strict=True) if p == c]
        means[c] = sum(rows) / len(rows)
    average = sum(READ[readout](z) for z in train.logits.double().tolist()) / len(train)
    scores = CADRef(readout=readout).fit(world.head, train).score(world.test)
    for x, logits, score in zip(world.test.features.double(), world.test.logits, scores.tolist(), strict=True):
        c = int(logits.argmax())
        raising = lowering = 0.0
        for value, mean, weight in zip(x.tolist(), means[c].tolist(), world.head.weight[c].tolist(), strict=True):
            effect = (value - mean) * (1 if weight > 0 else -1 if weight < 0 else 0)
            if effect > 0:
                raising += effect
            else:
                lowering -= effect
        size = sum(abs(v) for v in x.tolist())
        expected = -(raising / size / READ[readout](logits.double().tolist()) + lowering / size / average)
        assert score == pytest.approx(expected, rel=1e-4)


def test_a_class_that_was_never_predicted_has_the_mean_of_all(world):
    kept = world.train[world.train.logits.argmax(dim=1) != 2]
    detector = CADRef().fit(world.head, kept)
    torch.testing.assert_close(detector.means_[2], kept.features.mean(dim=0), rtol=1e-4, atol=1e-5)
    assert detector.score(world.test).isfinite().all()


def test_a_negative_energy_is_no_merit(world):
    """Divided by it, an error would raise the score."""
    head = Head(world.head.weight, world.head.bias - 9)
    train, ood = (Activations(a.features, head(a.features)) for a in (world.train, world.ood))
    assert (ood.logits.logsumexp(dim=1) < 0).any()
    assert (CADRef().fit(head, train).score(ood) < 0).all()

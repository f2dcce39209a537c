import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from idness.core.types import Activations
from idness.methods import TempScale
from idness.methods.tempscale import best_temperature
from tests.worlds import make_world


def nll(logits: np.ndarray, labels: np.ndarray, temperature: float) -> float:
    total = 0.0
    for row, label in zip(logits / temperature, labels, strict=True):
        total += math.log(sum(math.exp(z - row.max()) for z in row)) + row.max() - row[label]
    return total / len(labels)


@pytest.fixture(scope="module")
def unsure():
    """A network that errs: its labels are partly random, so that a finite temperature is best."""
    world = make_world(seed=5)
    rng = torch.Generator().manual_seed(0)
    labels = torch.where(
        torch.rand(200, generator=rng) < 0.7, world.val.labels, torch.randint(5, (200,), generator=rng)
    )
    return world, Activations(world.val.features, world.val.logits, labels)


def test_its_temperature_minimises_the_likelihood_loss(unsure):
    _, val = unsure
    logits, labels = val.logits.double().numpy(), val.labels.numpy()
    best = minimize_scalar(
        lambda t: nll(logits, labels, t), bounds=(0.1, 20), method="bounded", options={"xatol": 1e-6}
    )
    assert float(best_temperature(val.logits, val.labels)) == pytest.approx(best.x, rel=1e-3)
    assert 0.1 < best.x < 20


def test_it_is_msp_at_that_temperature_of_validation_images_if_there_are_any(unsure):
    world, val = unsure
    detector = TempScale().fit(world.head, world.train, val=val)
    expected = torch.softmax(world.test.logits / detector.temperature_, dim=1).max(dim=1).values
    torch.testing.assert_close(detector.score(world.test), expected)
    assert float(detector.temperature_) == float(best_temperature(val.logits, val.labels))
    assert detector.temperature_ != TempScale().fit(world.head, world.train).temperature_


def test_the_temperature_is_held_where_it_would_be_nothing_or_boundless():
    """Without an error the best is 0, at chance it is infinite."""
    logits = torch.eye(4)
    assert float(best_temperature(logits, torch.arange(4))) == pytest.approx(0.05)
    assert float(best_temperature(50 * logits.repeat(25, 1), torch.arange(100) // 25)) == pytest.approx(20)
    assert 0.05 <= float(best_temperature(50 * logits, torch.arange(4))) <= 20

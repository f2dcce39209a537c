import math

import pytest
import torch

from idness.core.types import Activations
from idness.methods import EBO


@pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0])
def test_it_is_the_negative_free_energy(world, temperature):
    scores = EBO(temperature=temperature).fit(world.head).score(world.test)
    for row, score in zip(world.test.logits.tolist(), scores.tolist(), strict=True):
        expected = temperature * math.log(sum(math.exp(z / temperature) for z in row))
        assert score == pytest.approx(expected, rel=1e-5)


def test_logits_far_apart_neither_overflow_nor_underflow(world):
    logits = torch.tensor([[1e4, -1e4, 0.0, 0.0, 0.0], [-1e4] * 5])
    scores = EBO().fit(world.head).score(Activations(world.test.features[:2], logits))
    assert scores.tolist() == pytest.approx([1e4, -1e4 + math.log(5)])

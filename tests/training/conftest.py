from __future__ import annotations

import pytest
import torch

from idness.training import TrainingSet


def small_world(count: int = 48, size: int = 8, seed: int = 0) -> TrainingSet:
    """Three classes that differ in brightness, with noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    noise = torch.rand(count, size, size, 3, generator=generator) * 80
    return TrainingSet((noise + labels.view(-1, 1, 1, 1) * 70).to(torch.uint8), labels, ("dark", "grey", "bright"))


@pytest.fixture
def world() -> TrainingSet:
    return small_world()

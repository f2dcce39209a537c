from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from idness.types import Activations, Head
from tests.analysis.rectified import World, rectified_world


@pytest.fixture(scope="session")
def world() -> World:
    return rectified_world(0.5, 0.0)


@pytest.fixture(scope="session")
def densenet(shared_data: Path) -> World:
    folder = shared_data / "activations"
    head = Head(**load_file(folder / "head.safetensors"))
    parts = [load_file(folder / f"{name}.safetensors") for name in ("cifar10_test", "isun")]
    inside, outside = (Activations(part["features"], part["logits"], part.get("labels")) for part in parts)
    return World(head, inside, outside)

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from colour_world import COLOURS, HOW, known, known_tensors
from tiny_net import Tiny

from idness.data import ArraySet
from idness.guard import Guard
from idness.guard.gallery import Gallery


@pytest.fixture(scope="module")
def shown(trained: torch.nn.Module) -> Guard:
    """A calibrated guard with a gallery of 24 images."""
    guard = Guard(trained, "scale", preprocessing=HOW, class_names=Tiny.class_names)
    guard.calibrate([known_tensors(200)[0]])
    pictures = [known(list(COLOURS)[index % 4], index) for index in range(24)]
    acts = guard.split.split(torch.stack([HOW(picture) for picture in pictures]))
    guard.gallery = Gallery.of(ArraySet(pictures), replace(acts, index=torch.arange(24)), guard.detector)
    return guard

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from idness.core.errors import UnknownNameError
from idness.networks.architectures import build
from idness.networks.load import load_for_training
from idness.networks.split import SplitModel


def test_small_resnet_is_what_the_benchmark_needs() -> None:
    model = build("small_resnet", 6)
    assert sum(p.numel() for p in model.parameters()) <= 1_200_000
    split = SplitModel(model)
    assert split.layer == "fc"
    acts = split.split(torch.rand(2, 3, 32, 32))
    assert acts.features.shape == (2, 320)
    assert (acts.features >= 0).all()
    assert acts.logits.shape == (2, 6)


def test_unknown_network() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'small_resnet'"):
        build("smal_resnet", 6)


def test_own_file_gets_a_head_for_the_classes(tmp_path: Path) -> None:
    source = (
        "from torch import nn\n"
        "def make():\n"
        "    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))\n"
    )
    (tmp_path / "mine.py").write_text(source)
    model = load_for_training(f"{tmp_path / 'mine.py'}:make", 3)
    assert isinstance(model[3], nn.Linear)
    assert model[3].out_features == 3
    assert load_for_training(f"{tmp_path / 'mine.py'}:make", 10)[3].out_features == 10

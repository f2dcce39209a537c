from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from idness.core.errors import ModelError
from idness.data import ArraySet, Preprocessing
from idness.networks.modules import best_layout
from idness.networks.open import ModelOptions, Network, open_network
from idness.networks.split import SplitModel
from tests.training.runs import Flattening

SETTING = Preprocessing(mean=(0.3, 0.3, 0.3), std=(0.2, 0.2, 0.2))


SMALL = """
import torch
from torch import nn


def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 12, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 3))
"""


def network() -> nn.Module:
    names: dict[str, Any] = {}
    exec(SMALL, names)
    made: nn.Module = names["make"]()
    return made


def pictures(count: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Draw noise in which the colour of the label is brighter than the others."""
    labels = np.arange(count) % 3
    images = np.random.default_rng(0).integers(0, 90, (count, 8, 8, 3))
    images[np.arange(count), :, :, labels] += 60
    return images.astype(np.uint8), labels


def labelled() -> ArraySet:
    images, labels = pictures()
    return ArraySet(images, "x", labels)


def test_given_preprocessing_counts_before_the_networks_own() -> None:
    model = network()
    model.preprocessing = {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}
    assert open_network(model, images=labelled()).preprocessing.mean == (0.5, 0.5, 0.5)
    assert open_network(ModelOptions(model, preprocessing=SETTING), images=labelled()).preprocessing == SETTING


def test_unknown_preprocessing_is_refused() -> None:
    with pytest.raises(ModelError, match=r"preprocessing is unknown; pass preprocessing= or set model\.preprocessing"):
        open_network(network(), images=labelled())
    bare = open_network(network())  # nothing to run on yet
    with pytest.raises(ModelError, match="preprocessing is unknown"):
        _ = bare.preprocessing


def test_labels_are_brought_to_the_networks_order() -> None:
    split = SplitModel(network(), example=torch.zeros(2, 3, 8, 8))
    images, labels = pictures(6)
    known = Network(split, SETTING, class_names=("b", "a", "c"))
    assert known.labels_of(ArraySet(images, "x", labels, ("a", "b", "c"))).tolist() == [1, 0, 2, 1, 0, 2]
    assert known.labels_of(ArraySet(images, "x", labels, ("a", "c", "d"))) is None  # by position "a" would be "b"
    assert known.labels_of(ArraySet(images, "x", labels, ("x", "y", "z"))).tolist() == labels.tolist()
    assert known.labels_of(ArraySet(images, "x", labels, ("a", "c", "d", "e"))) is None
    assert known.labels_of(ArraySet(images, "x", labels + 1)) is None
    assert known.labels_of(ArraySet(images, "x")) is None


def test_networks_loaded_by_name_run_channels_last_unless_they_flatten_with_view(tmp_path: Path) -> None:
    model, images = Flattening(), torch.rand(5, 3, 8, 8)
    with pytest.raises(RuntimeError, match="view"):
        model(images.to(memory_format=torch.channels_last))
    assert best_layout(model, images[:2]) is torch.contiguous_format
    assert model.conv.weight.is_contiguous()
    given = network()
    found = open_network(ModelOptions(given, preprocessing=SETTING), images=labelled()).split.split(images)
    assert given[0].weight.is_contiguous()
    (tmp_path / "net.py").write_text(SMALL)
    ours = open_network(ModelOptions(f"{tmp_path}/net.py:make", preprocessing=SETTING), images=labelled()).split
    assert torch.allclose(ours.split(images).logits, found.logits, atol=1e-5)
    assert ours.model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert not ours.model[0].weight.is_contiguous()


@pytest.mark.fault("`--device cuda` on a machine without one", does="one line that recommends cpu")
@pytest.mark.parametrize("device", ["cuda:77", "nonsense"])
def test_a_device_that_is_not_there_is_told(device: str) -> None:
    with pytest.raises(ModelError, match=r"^device must be available, got .*use device='cpu'$"):
        open_network(ModelOptions("cifar6:base", device=device))

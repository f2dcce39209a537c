from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from idness.activations.forward import collect, run_images
from idness.core.errors import DataError
from idness.core.progress import Listener
from idness.core.types import Activations
from idness.data import ArraySet, Preprocessing, open_set
from idness.networks.open import Network
from idness.networks.split import SplitModel
from tests.pictures import network, pictures

SETTING = Preprocessing(mean=(0.3, 0.3, 0.3), std=(0.2, 0.2, 0.2))


class Heard(Listener):
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, int | None]] = []
        self.steps = 0

    def phase(self, name: str, total: int | None) -> None:
        self.phases.append((name, total))

    def advance(self, steps: int) -> None:
        self.steps += steps


@pytest.fixture(scope="module")
def net() -> Network:
    return Network(SplitModel(network(), example=torch.rand(2, 3, 16, 16)), SETTING)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for index, image in enumerate(pictures(6, 0)[0]):
        Image.fromarray(image).save(tmp_path / f"{index}.png")
    return tmp_path


def test_evenly_picked_with_places_and_without_what_cannot_be_read(net: Network, folder: Path) -> None:
    (folder / "3.png").write_bytes(b"no picture")
    heard = Heard()
    whole = collect(net, open_set(str(folder)), listener=heard)
    assert whole.index is not None
    assert whole.index.tolist() == [0, 1, 2, 4, 5]
    assert [place for place, _ in whole.skipped] == [3]
    assert (heard.phases, heard.steps) == ([(folder.name, 6)], 6)
    np.testing.assert_array_equal(whole.thumbnails(np.array([3]))[0], pictures(6, 0)[0][4])
    assert len(collect(net, open_set(str(folder)), limit=3).acts) == 3
    for path in folder.iterdir():
        path.write_bytes(b"no picture")
    with pytest.raises(DataError, match="all of it: none of its 6 images"):
        collect(net, open_set(str(folder)), name="all of it")


def test_copies_are_left_out_where_asked_for(net: Network, folder: Path) -> None:
    Image.open(folder / "1.png").save(folder / "7.bmp")  # the same pixels in another format
    assert len(collect(net, open_set(str(folder))).acts) == 7
    distinct = collect(net, open_set(str(folder)), distinct=True)
    assert distinct.repeated == 1
    assert distinct.index is not None
    assert distinct.index.tolist() == [0, 1, 2, 3, 4, 5]


def test_activations_are_those_of_the_normalised_images(net: Network) -> None:
    images, labels = pictures(10, 0)
    expected = net.split.split(SETTING.normalize(images))
    for size in (3, 10):
        parts = [found for _, found in run_images(net, ArraySet(images, "x", labels), batch_size=size) if found]
        assert torch.allclose(torch.cat([part.acts.features for part in parts]), expected.features, atol=1e-6)
    found = collect(net, ArraySet(images, "x", labels), pre_relu=True)
    assert torch.equal(found.acts.labels, torch.from_numpy(labels))
    assert str(found.rectifier) == "ReLU and average pooling"
    assert found.pre is not None
    assert found.pre.shape == found.acts.features.shape


def test_labels_stay_with_their_images_where_one_cannot_be_read(net: Network, folder: Path) -> None:
    for index in range(6):
        (folder / f"class {index % 4}").mkdir(exist_ok=True)
        (folder / f"{index}.png").rename(folder / f"class {index % 4}" / f"{index}.png")
    (folder / "class 0" / "0.png").write_bytes(b"no picture")
    found = collect(net, open_set(str(folder)))
    assert found.acts.labels is not None
    assert found.acts.labels.tolist() == [0, 1, 1, 2, 3]


def test_input_can_be_edited_by_the_place_of_its_batch(net: Network) -> None:
    images = ArraySet(pictures(5, 0)[0], "x")
    starts = []

    def dark(batch: torch.Tensor, start: int) -> torch.Tensor:
        starts.append((start, len(batch)))
        return batch * 0

    parts = [found for _, found in run_images(net, images, batch_size=3, edit=dark) if found]
    assert starts == [(0, 3), (3, 2)]
    assert torch.equal(parts[0].acts.features[0], parts[1].acts.features[1])


def test_the_chosen_precision_is_used(net: Network) -> None:
    images = ArraySet(pictures(5, 0)[0], "x")
    asked = []

    class Split(SplitModel):
        """Notes the precision of its passes."""

        def split(self, images: torch.Tensor, **how: Any) -> Activations:
            asked.append(how["precision"])
            return super().split(images, **how | {"precision": "fp32"})

    split = Split(network(), example=torch.rand(2, 3, 16, 16))
    collect(replace(net, split=split, precision=replace(net.precision, used="bf16")), images)
    assert asked == ["bf16"]


def test_a_set_of_images_needs_a_network(folder: Path) -> None:
    with pytest.raises(DataError, match="a network is needed"):
        collect(None, open_set(str(folder)))

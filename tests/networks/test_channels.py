from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from idness.activations.extract import collect
from idness.core.errors import DataError, ModelError
from idness.data import ArraySet, Preprocessing, open_set
from idness.guard import Guard
from idness.networks.open import ModelOptions, open_network
from tests.cli.running import idness

GREY = """
import torch
from torch import nn

def make():
    net = nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 2))
    net[0].weight.data = torch.tensor([1.0, -1.0]).view(2, 1, 1, 1)
    net[0].bias.data.zero_()
    net[4].weight.data = torch.tensor([[-9.0, 9.0], [9.0, -9.0]])
    net[4].bias.data.zero_()
    return net
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of grey pictures, dark and bright ones, and a network for them."""
    (tmp_path / "net.py").write_text(GREY)
    rng = np.random.default_rng(0)
    for name, level in (("bright", 180), ("dark", 60)):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(20):
            pixels = (level + rng.integers(-20, 20, (9, 9))).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{number}.png")
    return tmp_path


def test_a_network_of_one_channel_from_the_command_line(folder: Path) -> None:
    spec, how = f"{folder}/net.py:make", ("--size", 8, "--mean", "0.5", "--std", "0.25", "--classes", "dark,bright")
    made = idness("calibrate", spec, "--data", folder / "images", *how, "--method", "mls", "-o", folder / "guard")
    assert made.returncode == 0, made.stderr
    said = " ".join(made.stderr.split())
    assert "mean (0.5,), std (0.25,)" in said
    scored = idness("score", folder / "guard", folder / "images" / "dark" / "3.png", "--json")
    assert json.loads(scored.stdout)["class"] == "dark"
    wrong = idness(
        "calibrate", spec, "--data", folder / "images", "--size", 8, "--mean", ".5,.5,.5", "--std", ".2,.2,.2"
    )
    assert wrong.returncode == 2
    assert "to have 1 channels, but got 3 channels" in " ".join(wrong.stderr.split())
    guard = Guard.load(folder / "guard", open_network(spec).split)
    assert guard.to_onnx(folder / "guard.onnx").is_file()  # the network runs over an example of one channel


def test_grey_pictures_are_read_as_grey(folder: Path) -> None:
    file = folder / "images" / "dark" / "0.png"
    pixels = np.asarray(Image.open(file))
    how = Preprocessing(mean=(0.5,), std=(0.25,))
    assert np.array_equal(how.pixels(open_set(str(folder / "images")).picture(20))[..., 0], pixels)
    colour = Image.fromarray(np.random.default_rng(0).integers(0, 256, (5, 5, 3), dtype=np.uint8))
    assert np.array_equal(how.pixels(colour)[..., 0], np.asarray(colour.convert("L")))
    assert how.pixels(np.asarray(colour)).shape == (5, 5, 1)
    assert how(colour).shape == (1, 5, 5)
    np.savez(folder / "grey.npz", images=np.stack([pixels, pixels])[:, None])
    grey = open_set(str(folder / "grey.npz"))
    assert np.array_equal(how.pixels(grey.picture(1))[..., 0], pixels)  # type: ignore[union-attr]


def test_a_network_of_many_channels_takes_arrays() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (40, 8, 12, 5), dtype=np.uint8)
    model = nn.Sequential(nn.Conv2d(5, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    how = Preprocessing(mean=(0.5,) * 5, std=(0.25,) * 5)
    last, first = (ArraySet(given, "bands") for given in (images, images.transpose(0, 3, 1, 2)))
    assert last.channels == first.channels == 5
    acts = collect(open_network(ModelOptions(model, preprocessing=how), images=last), first).acts
    with torch.no_grad():
        expected = model((torch.from_numpy(images).movedim(-1, 1) / 255 - 0.5) / 0.25)
    assert torch.allclose(acts.logits, expected, atol=1e-5)
    with pytest.raises(ModelError, match="to have 5 channels, but got 3 channels"):
        open_network(ModelOptions(model, preprocessing=Preprocessing(resize=(8, 8), mean=(0.5, 0.5, 0.5))))
    with pytest.raises(DataError, match=r"must be uint8 \(height, width, 3\), got uint8 of shape"):
        open_network(ModelOptions(model, preprocessing=Preprocessing(mean=(0.5, 0.5, 0.5))), images=last)


def test_each_of_many_channels_is_resized_like_a_picture() -> None:
    bands = np.random.default_rng(0).integers(0, 256, (9, 15, 4), dtype=np.uint8)
    how = Preprocessing(resize=6, crop=(5, 7), mean=(0.0,) * 4, std=(1.0,) * 4)
    alone = Preprocessing(resize=6, crop=(5, 7), mean=(0.0,), std=(1.0,))
    found = how.pixels(bands)
    assert found.shape == (5, 7, 4)
    for place in range(4):
        assert np.array_equal(found[..., place], alone.pixels(Image.fromarray(bands[..., place].copy()))[..., 0])
    with pytest.raises(DataError, match="mean and std have 4 channels, got an image file"):
        how.pixels(Image.new("RGB", (9, 9)))

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from idness.core.errors import DataError, OptionError
from idness.data import Preprocessing, preprocessing_for
from idness.data.preprocess import thumbnail

transforms = pytest.importorskip("torchvision.transforms")
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def picture(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (224, 224), (40, 31), (256, 300), (301, 256)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_equals_torchvision(size: tuple[int, int], interpolation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    resize = transforms.Resize(256, transforms.InterpolationMode(interpolation))
    steps = [resize, transforms.CenterCrop(224), transforms.ToTensor(), transforms.Normalize(**IMAGENET)]
    theirs = transforms.Compose(steps)
    ours = Preprocessing(resize=256, crop=224, interpolation=interpolation, **IMAGENET)
    levels = 255 * torch.tensor(IMAGENET["std"]).view(3, 1, 1)
    wanted = theirs(picture(*size))
    # torch rounds a few values to the next one.
    for found in (ours(picture(*size)), ours(np.asarray(picture(*size)))):
        apart = ((found - wanted) * levels).abs()
        assert apart.max() < 1.01
        assert apart.mean() < 0.02
    with monkeypatch.context() as without:
        without.delitem(sys.modules, "torch")
        pillow = ours.pixels(picture(*size))
        assert np.array_equal(pillow, ours.pixels(np.asarray(picture(*size))))
    torch.testing.assert_close(ours.normalize(np.array(pillow)), wanted)
    assert ours.size == (224, 224)


def test_crop_larger_than_the_image_pads_as_torchvision_does() -> None:
    theirs = transforms.Compose([transforms.CenterCrop(33), transforms.ToTensor()])
    for size in ((20, 40), (40, 20), (20, 21)):
        assert torch.equal(Preprocessing(crop=33)(picture(*size)), theirs(picture(*size)))


@pytest.mark.parametrize("size", [(5000, 1), (1, 5000)])
@pytest.mark.parametrize("with_torch", [True, False])
def test_strips_stay_small(size: tuple[int, int], with_torch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, ...]] = []
    owner, name = (torch.nn.functional, "interpolate") if with_torch else (Image.Image, "resize")
    resize = getattr(owner, name)

    def watched(image: object, target: tuple[int, int], *more: object, **named: object) -> object:
        made.append(target)
        return resize(image, target, *more, **named)

    monkeypatch.setattr(owner, name, watched)
    if not with_torch:
        monkeypatch.delitem(sys.modules, "torch")
    assert Preprocessing(resize=256, crop=224).pixels(picture(*size)).shape == (224, 224, 3)
    assert [max(target) for target in made] == [32 * 256]


def test_an_array_of_the_right_size_is_left_alone() -> None:
    array = np.asarray(picture(32, 32))
    same = Preprocessing(resize=32, crop=32).pixels(array)
    assert np.shares_memory(same, array)
    assert np.array_equal(same, array)
    batch = Preprocessing(**IMAGENET).normalize(np.stack([array, array]))
    assert torch.equal(batch[1], Preprocessing(**IMAGENET)(array))
    with pytest.raises(DataError, match="uint8"):
        Preprocessing().pixels(array.astype(np.float32))  # type: ignore[arg-type]
    how, mirrored = Preprocessing(resize=20, crop=16), np.asarray(picture(40, 30))[:, ::-1]
    assert not mirrored.flags.writeable
    assert np.array_equal(how.pixels(mirrored), how.pixels(mirrored.copy()))


@pytest.mark.parametrize("shape", [(0, 8, 8, 3), (70, 32, 32, 3), (2, 3, 8, 8, 3), (8, 8, 3)])
def test_images_are_normalised_alike_in_any_number(shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    before = pixels.copy()
    found = Preprocessing(**IMAGENET).normalize(pixels)
    assert np.array_equal(pixels, before)
    assert np.abs(Preprocessing(**IMAGENET).normalize_array(pixels) - found.numpy()).max(initial=0) < 1e-6
    mean, std = (np.array(IMAGENET[name], np.float32) for name in ("mean", "std"))
    expected = np.moveaxis((pixels.astype(np.float32) / np.float32(255) - mean) / std, -1, -3)
    assert found.is_contiguous()
    assert np.array_equal(found.numpy(), expected)


def test_dictionary_round_trip_and_description() -> None:
    made = Preprocessing(resize=(40, 60), crop=32, interpolation="bicubic", **IMAGENET)
    assert Preprocessing.from_dict(made.to_dict()) == made
    means = "mean (0.485, 0.456, 0.406), std (0.229, 0.224, 0.225)"
    assert made.describe() == f"resize (40, 60), crop 32, {means}, interpolation bicubic"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resize": 0}, "resize must be"),
        ({"crop": "big"}, "crop must be"),
        ({"mean": [0.5]}, "mean and std must have the same length"),
        ({"mean": []}, "must be numbers, one per channel"),
        ({"std": [1, 0, 1]}, "above 0"),
        ({"interpolation": "cubic"}, "must be one of"),
        ({"size": 3}, "unknown option 'size'"),
    ],
)
def test_wrong_options_are_reported(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Preprocessing.from_dict(options)


def test_suspicious_normalisation() -> None:
    images = np.random.default_rng(0).integers(0, 256, (32, 8, 8, 3), dtype=np.uint8)
    assert "not normalised" in str(Preprocessing().suspicion(images))
    assert "255" in str(Preprocessing(mean=(123, 117, 104), std=(58, 57, 57)).suspicion(images))
    assert Preprocessing(**IMAGENET).suspicion(images) is None
    assert "check" in str(Preprocessing(mean=(0.5, 0.5, 0.5), std=(0.01, 0.01, 0.01)).suspicion(images))


def test_torchvision_weights_define_their_preprocessing() -> None:
    model = nn.Linear(1, 1)
    first = Preprocessing(resize=256, crop=224, **IMAGENET)
    second = Preprocessing(resize=232, crop=224, **IMAGENET)
    assert preprocessing_for(model, "torchvision:resnet50:IMAGENET1K_V1") == first
    assert preprocessing_for(model, "torchvision:resnet50", "x/resnet50-11ad3fa6.pth") == second
    assert preprocessing_for(model, "torchvision:resnet50") == second  # the weights that load_model takes
    assert preprocessing_for(model, "torchvision:resnet50", "mine.safetensors") == first


def test_timm_configuration() -> None:
    timm = pytest.importorskip("timm")
    model = timm.create_model("vit_tiny_patch16_224", pretrained=False)
    found = preprocessing_for(model, "timm:vit_tiny_patch16_224")
    config = timm.data.resolve_model_data_config(model)
    theirs = timm.data.create_transform(**config, is_training=False)
    assert found is not None
    apart = (found(picture(300, 280)) - theirs(picture(300, 280))).abs() * 255 / 2
    assert apart.max() < 1.01
    assert apart.mean() < 0.02


def test_own_attribute_comes_first_and_nothing_is_guessed(tmp_path: Path) -> None:
    model = nn.Linear(1, 1)
    embedded = preprocessing_for(model, "cifar6:base")
    assert embedded is not None
    assert embedded(picture(300, 200)).shape == (3, 32, 32)
    assert preprocessing_for(model, f"{tmp_path}/mine.py:make") is None
    model.preprocessing = {"resize": 20, "mean": [0.5, 0.5, 0.5]}  # type: ignore[assignment]
    assert preprocessing_for(model, "torchvision:resnet50") == Preprocessing(resize=20, mean=(0.5, 0.5, 0.5))


@pytest.mark.parametrize("kind", ["image", "array", "grey"])
def test_thumbnails_are_small_rgb_copies(kind: str) -> None:
    for size, expected in (((200, 100), (64, 32)), ((5, 3), (5, 3))):
        given = Image.new("L" if kind == "grey" else "RGB", size, 77)
        small = thumbnail(np.array(given) if kind == "array" else given, 64)
        assert (small.size, small.mode, given.size) == (expected, "RGB", size)

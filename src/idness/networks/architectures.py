"""The small network that the embedded benchmark ships, and how a network to train is found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from idness.core.errors import ModelError, unknown_name
from idness.networks.final_layer import final_linear, replace_module
from idness.networks.runs import WEIGHTS
from idness.networks.split import load_model, load_weights


class PreactBlock(nn.Module):
    """Add two 3 x 3 convolutions, each after batch norm and ReLU, to what comes in."""

    def __init__(self, width_in: int, width_out: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(width_in)
        self.conv1 = nn.Conv2d(width_in, width_out, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width_out)
        self.conv2 = nn.Conv2d(width_out, width_out, 3, 1, 1, bias=False)
        same = stride == 1 and width_in == width_out
        self.shortcut = None if same else nn.Conv2d(width_in, width_out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the block."""
        active = torch.relu(self.bn1(x))
        skip = x if self.shortcut is None else self.shortcut(active)
        out: Tensor = self.conv2(torch.relu(self.bn2(self.conv1(active)))) + skip
        return out


class SmallResNet(nn.Module):
    """Classify 32 x 32 images with a pre-activation ResNet that a CPU can train.

    It ends in a 1 x 1 convolution to many channels, batch norm, ReLU and the mean over all places: non-negative
    features in the order of the paper's DenseNet, and enough of them for a percentile of a row to mean something.

    Args:
        classes: number of classes.
        stem: channels of the first convolution.
        plan: (channels, stride) of each block.
        features: width of what enters the final linear layer.
    """

    def __init__(self, classes: int, stem: int, plan: Sequence[tuple[int, int]], features: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, stem, 3, 1, 1, bias=False)
        widths = [stem, *(width for width, _ in plan)]
        pairs = zip(widths, plan, strict=False)
        self.blocks = nn.Sequential(*(PreactBlock(before, width, stride) for before, (width, stride) in pairs))
        self.bn1 = nn.BatchNorm2d(widths[-1])
        self.conv2 = nn.Conv2d(widths[-1], features, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(features)
        self.fc = nn.Linear(features, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Compute the logits of a batch of normalised images."""
        x = self.blocks(self.conv1(images))
        x = self.conv2(torch.relu(self.bn1(x)))
        x = torch.relu(self.bn2(x)).mean((2, 3))
        logits: Tensor = self.fc(x)
        return logits


def small_resnet(classes: int = 6) -> SmallResNet:
    """Make the network of the embedded benchmark: 0.42 M parameters, 16 M multiplications, 320 features."""
    return SmallResNet(classes, stem=16, plan=((32, 2), (64, 2), (64, 1), (128, 2)), features=320)


def tiny_resnet(classes: int = 6) -> SmallResNet:
    """Make a very small network of the same build, to try a recipe within seconds."""
    return SmallResNet(classes, stem=8, plan=((16, 2), (32, 2)), features=64)


NETWORKS: dict[str, Callable[[int], nn.Module]] = {"small_resnet": small_resnet, "tiny_resnet": tiny_resnet}


def build(name: str, classes: int) -> nn.Module:
    """Make one of our networks by its name."""
    if name not in NETWORKS:
        raise unknown_name("network", name, NETWORKS)
    return NETWORKS[name](classes)


def load(spec: str, classes: int, init: str = "", seed: int = 0, *, example: Tensor | None = None) -> nn.Module:
    """Make a network for these classes, by one of our names or as `idness.networks.split.load_model` takes it.

    A network with another number of outputs gets a new final layer.

    Args:
        spec: `small_resnet`, `torchvision:NAME`, `timm:NAME`, or `path/to/file.py:FUNCTION`, perhaps with arguments.
        classes: number of classes.
        init: file of weights, or the folder of a run; `pretrained` for those that come with the network, or exactly which, as in
            `torchvision:resnet50:IMAGENET1K_V1`; empty for none.
        seed: decides the initial weights where none are given.
        example: a batch of images, for a network that takes no other size.
    """
    torch.manual_seed(seed)
    exact = init.startswith(("torchvision:", "timm:"))
    if exact and init.split(":")[:2] != spec.split(":")[:2]:
        raise ModelError(f"init={init!r} are weights of another network than {spec!r}; name the same one")
    if exact:
        model = load_model(init)
    else:
        model = load_model(spec, "none" if init != "pretrained" else None) if ":" in spec else build(spec, classes)
    if init and init != "pretrained" and not exact:
        load_weights(model, Path(init) / WEIGHTS if Path(init).is_dir() else init)
    inner, name, linear = final_linear(model, example=example)
    if linear.out_features != classes:
        replace_module(inner, name, nn.Linear(linear.in_features, classes, linear.bias is not None))
    return model

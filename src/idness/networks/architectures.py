"""Network architectures: those of the embedded benchmarks, and CIDER's projection on top of any classifier."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from idness.core.errors import unknown_name
from idness.networks.modules import entering


class PreactBlock(nn.Module):
    """Two 3 x 3 convolutions, each after BatchNorm and ReLU, added to the input."""

    def __init__(self, width_in: int, width_out: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(width_in)
        self.conv1 = nn.Conv2d(width_in, width_out, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width_out)
        self.conv2 = nn.Conv2d(width_out, width_out, 3, 1, 1, bias=False)
        same = stride == 1 and width_in == width_out
        self.shortcut = None if same else nn.Conv2d(width_in, width_out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = torch.relu_(self.bn1(x))
        skip = x if self.shortcut is None else self.shortcut(active)
        out: Tensor = self.conv2(torch.relu_(self.bn2(self.conv1(active)))) + skip
        return out


class SmallResNet(nn.Module):
    """A pre-activation ResNet for 32 x 32 images that can be trained on a CPU.

    It ends in a 1 x 1 convolution to many channels, BatchNorm, ReLU and average pooling: features are non-negative, as in the
    paper's DenseNet, and numerous enough for percentiles to be meaningful. `plan` has the (channels, stride) of each block.
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
        x = self.blocks(self.conv1(images))
        x = self.conv2(torch.relu_(self.bn1(x)))
        x = torch.relu_(self.bn2(x)).mean((2, 3))
        logits: Tensor = self.fc(x)
        return logits


def small_resnet(classes: int = 6) -> SmallResNet:
    """Return the network of the embedded benchmark: 0.42 M parameters, 16 M multiplications, 320 features."""
    return SmallResNet(classes, stem=16, plan=((32, 2), (64, 2), (64, 1), (128, 2)), features=320)


def tiny_resnet(classes: int = 6) -> SmallResNet:
    """Return a very small network of the same kind, to test a recipe within seconds."""
    return SmallResNet(classes, stem=8, plan=((16, 2), (32, 2)), features=64)


NETWORKS: dict[str, Callable[[int], nn.Module]] = {"small_resnet": small_resnet, "tiny_resnet": tiny_resnet}


def build(name: str, classes: int) -> nn.Module:
    """Return one of these networks by name."""
    if name not in NETWORKS:
        raise unknown_name("network", name, NETWORKS)
    return NETWORKS[name](classes)


# MobileNetV2 of the benchmark `photos`, without torchvision but with the same parameter names

PLAN = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Expansion factor, channels, number of blocks, and stride of the first block."""
SCALE = ".scale"
"""Suffix of the names of the scales of weights that are stored as 16-bit integers."""


def _convolution(width_in: int, width_out: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(width_in, width_out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(width_out), nn.ReLU6(inplace=True))


class InvertedResidual(nn.Module):
    """An expanding 1 x 1, a depthwise 3 x 3 and a projecting 1 x 1 convolution, added to the input if the shapes allow."""

    def __init__(self, width_in: int, width_out: int, stride: int, factor: int) -> None:
        super().__init__()
        wide = width_in * factor
        widening = [] if factor == 1 else [_convolution(width_in, wide, 1)]
        narrowing = nn.Conv2d(wide, width_out, 1, bias=False), nn.BatchNorm2d(width_out)
        self.conv = nn.Sequential(*widening, _convolution(wide, wide, 3, stride, wide), *narrowing)
        self.adds = stride == 1 and width_in == width_out

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(x)
        return x + out if self.adds else out


class MobileNetV2(nn.Module):
    """MobileNetV2 of width 1 -- Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", CVPR 2018.

    3.5 M parameters, 1,280 non-negative features.
    """

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = [_convolution(3, 32, 3, 2)]
        width = 32
        for factor, channels, count, stride in PLAN:
            for place in range(count):
                layers.append(InvertedResidual(width, channels, stride if place == 0 else 1, factor))
                width = channels
        self.features = nn.Sequential(*layers, _convolution(width, 1280, 1))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images).mean((2, 3)))
        return logits


def unpacked(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return stored weights in float32, with integers multiplied by the scale of their channel."""
    return {
        name: value.float() * stored.get(name + SCALE, 1.0)
        for name, value in stored.items()
        if not name.endswith(SCALE)
    }


# CIDER

BACKBONE, PROJECTION, LAST = "backbone.", "projection.0.weight", "fc.weight"
"""Parameter names in CIDER's network: prefix of the classifier, a weight of the projection, and the final layer's weight."""


class ProjectedNetwork(nn.Module):
    """The network that CIDER trains: a classifier, a projection to the unit sphere, and prototypes as the final layer.

    Its features have length 1; KNN on them is CIDER's detector. `final` is the final linear layer of `backbone`.
    """

    def __init__(self, backbone: nn.Module, final: nn.Linear, classes: int, width: int = 128) -> None:
        super().__init__()
        self.backbone = backbone
        self._final = [final]  # in a list, so that it is not registered as a submodule twice
        inner = final.in_features
        self.projection = nn.Sequential(nn.Linear(inner, inner), nn.ReLU(), nn.Linear(inner, width))
        self.fc = nn.Linear(width, classes, bias=False)

    def embed(self, images: Tensor) -> Tensor:
        """Return the normalised projection of each image."""
        with entering(self._final[0]) as features:
            self.backbone(images)
        return F.normalize(self.projection(features[-1]).float(), dim=1)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits: the similarity to each prototype, divided by the temperature."""
        logits: Tensor = self.fc(self.embed(images))
        return logits

"""Networks of our own: the small ResNet of the embedded benchmark, and CIDER's projection around any classifier."""

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
        """Return the block's output."""
        active = torch.relu(self.bn1(x))
        skip = x if self.shortcut is None else self.shortcut(active)
        out: Tensor = self.conv2(torch.relu(self.bn2(self.conv1(active)))) + skip
        return out


class SmallResNet(nn.Module):
    """A pre-activation ResNet for 32 x 32 images that a CPU can train.

    It ends in a 1 x 1 convolution to many channels, BatchNorm, ReLU and the mean over all places: non-negative
    features as in the paper's DenseNet, and enough of them for a percentile of a row to be meaningful.

    Args:
        classes: number of classes.
        stem: channels of the first convolution.
        plan: (channels, stride) of each block.
        features: number of features.
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
        """Return the logits of a batch of normalised images."""
        x = self.blocks(self.conv1(images))
        x = self.conv2(torch.relu(self.bn1(x)))
        x = torch.relu(self.bn2(x)).mean((2, 3))
        logits: Tensor = self.fc(x)
        return logits


def small_resnet(classes: int = 6) -> SmallResNet:
    """Return the network of the embedded benchmark: 0.42 M parameters, 16 M multiplications, 320 features."""
    return SmallResNet(classes, stem=16, plan=((32, 2), (64, 2), (64, 1), (128, 2)), features=320)


def tiny_resnet(classes: int = 6) -> SmallResNet:
    """Return a very small network of the same kind, to try a recipe within seconds."""
    return SmallResNet(classes, stem=8, plan=((16, 2), (32, 2)), features=64)


NETWORKS: dict[str, Callable[[int], nn.Module]] = {"small_resnet": small_resnet, "tiny_resnet": tiny_resnet}


def build(name: str, classes: int) -> nn.Module:
    """Return one of our networks by name."""
    if name not in NETWORKS:
        raise unknown_name("network", name, NETWORKS)
    return NETWORKS[name](classes)


BACKBONE, FIRST, LAST = "backbone.", "projection.0.weight", "fc.weight"
"""The prefix of the weights of CIDER's network, and two of them that no other network has together."""


class ProjectedNetwork(nn.Module):
    """The network that CIDER trains: a classifier, a projection to the unit sphere, and prototypes as the final layer.

    Its features have length 1; KNN on them is CIDER's detector.

    Args:
        backbone: the classifier.
        final: its final linear layer.
        classes: the number of classes.
        width: the number of features.
    """

    def __init__(self, backbone: nn.Module, final: nn.Linear, classes: int, width: int = 128) -> None:
        super().__init__()
        self.backbone = backbone
        self._final = [final]  # in a list: not a submodule twice
        inner = final.in_features
        self.projection = nn.Sequential(nn.Linear(inner, inner), nn.ReLU(), nn.Linear(inner, width))
        self.fc = nn.Linear(width, classes, bias=False)

    def embed(self, images: Tensor) -> Tensor:
        """Return the normalised projection of each image."""
        with entering(self._final[0]) as features:
            self.backbone(images)
        return F.normalize(self.projection(features[-1]).float(), dim=1)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits: similarity to each prototype, over the temperature."""
        logits: Tensor = self.fc(self.embed(images))
        return logits


def is_projected(state: Mapping[str, Tensor]) -> bool:
    """Whether weights are of a `ProjectedNetwork`."""
    return {FIRST, LAST} <= state.keys() and any(name.startswith(BACKBONE) for name in state)

"""The network of the paper's CIFAR tables: DenseNet-BC of depth 100 and growth 12 (Huang et al., CVPR 2017).

Parts are named as in the public checkpoints of the DICE, ASH and SCALE papers, which call it DenseNet-101.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

GROWTH, LAYERS = 12, 16


class Layer(nn.Module):
    """BatchNorm, ReLU and convolution, twice; the new channels are appended to the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(width)
        self.conv1 = nn.Conv2d(width, 4 * GROWTH, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(4 * GROWTH)
        self.conv2 = nn.Conv2d(4 * GROWTH, GROWTH, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.conv1(self.bn1(x).relu())
        return torch.cat([x, self.conv2(self.bn2(inner).relu())], dim=1)


def _block(width: int) -> nn.Module:
    """Return a dense block, in which each layer receives the outputs of all layers before it."""
    layers = (Layer(width + step * GROWTH) for step in range(LAYERS))
    return nn.Sequential(OrderedDict(layer=nn.Sequential(*layers)))


def _transition(width: int) -> nn.Module:
    """Return a transition that halves channels, height and width."""
    norm, conv = nn.BatchNorm2d(width), nn.Conv2d(width, width // 2, 1, bias=False)
    return nn.Sequential(OrderedDict(bn1=norm, relu=nn.ReLU(), conv1=conv, pool=nn.AvgPool2d(2)))


class DenseNet(nn.Module):
    """A classifier of 32 x 32 images with 342 features."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        grown = LAYERS * GROWTH
        first, second = 2 * GROWTH, (2 * GROWTH + grown) // 2
        third = (second + grown) // 2
        self.conv1 = nn.Conv2d(3, first, 3, padding=1, bias=False)
        self.block1, self.trans1 = _block(first), _transition(first + grown)
        self.block2, self.trans2 = _block(second), _transition(second + grown)
        self.block3 = _block(third)
        self.bn1 = nn.BatchNorm2d(third + grown)
        self.fc = nn.Linear(third + grown, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.trans2(self.block2(self.trans1(self.block1(self.conv1(x)))))
        out: Tensor = self.fc(self.bn1(self.block3(x)).relu().mean(dim=(2, 3)))
        return out

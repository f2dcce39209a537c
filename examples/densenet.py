"""DenseNet-BC for 32 x 32 images (Huang et al., CVPR 2017), as a network of one's own for `idness bench`.

    idness bench mine.toml --model examples/densenet.py:densenet101 --weights densenet101_cifar10.pth.tar

The names of its parts are those of the checkpoints that the DICE, ASH and SCALE papers use.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Bottleneck(nn.Module):
    """Adds `growth` channels: a 1 x 1 convolution, then a 3 x 3, each behind batch norm and ReLU."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(channels), nn.Conv2d(channels, 4 * growth, 1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(4 * growth), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(torch.relu(self.bn1(x)))
        return torch.cat([x, self.conv2(torch.relu(self.bn2(y)))], dim=1)


class Block(nn.Module):
    """Stacks bottlenecks."""

    def __init__(self, channels: int, growth: int, count: int) -> None:
        super().__init__()
        self.layer = nn.Sequential(*(Bottleneck(channels + place * growth, growth) for place in range(count)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class Transition(nn.Module):
    """Halves the channels and the side length."""

    def __init__(self, channels: int, kept: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(channels), nn.Conv2d(channels, kept, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.avg_pool2d(self.conv1(torch.relu(self.bn1(x))), 2)


class DenseNet(nn.Module):
    """Three dense blocks with transitions between them, batch norm, ReLU, mean over all places, one linear layer."""

    def __init__(self, depth: int, classes: int, growth: int = 12, reduction: float = 0.5) -> None:
        super().__init__()
        count, channels = (depth - 4) // 6, 2 * growth
        self.conv1 = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        for stage in (1, 2, 3):
            setattr(self, f"block{stage}", Block(channels, growth, count))
            channels += count * growth
            if stage < 3:
                kept = int(channels * reduction)
                setattr(self, f"trans{stage}", Transition(channels, kept))
                channels = kept
        self.bn1, self.fc = nn.BatchNorm2d(channels), nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.trans1(self.block1(self.conv1(x)))
        x = self.block3(self.trans2(self.block2(x)))
        return self.fc(torch.relu(self.bn1(x)).mean((2, 3)))


def densenet101(classes: int = 10) -> DenseNet:
    """Build the network that those papers call DenseNet-101: depth 100, growth 12, 342 features."""
    return DenseNet(100, classes)

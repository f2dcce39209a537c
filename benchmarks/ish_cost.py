"""What ISH adds to a training step of a ResNet-18 at CIFAR size: python benchmarks/ish_cost.py

One network, one optimizer, the same batch; only the final layer is swapped between steps. A step takes seconds on one
thread, and its noise is larger than what ISH adds: so the final layer is timed alone, too.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from idness.training import IshLinear, ish
from ratios import interleaved, report

BATCH, PAIRS, REPEATS, WANTED = 64, 16, 50, 1.02


class Block(nn.Module):
    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        plain = stride == 1 and before == width
        self.skip = (
            nn.Identity()
            if plain
            else nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))
        )

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.skip(x))


class ResNet18(nn.Module):
    """The CIFAR form: a 3 x 3 stem without pooling, four stages of two blocks, 512 features."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        plan = [
            (64, 64, 1),
            (64, 64, 1),
            (64, 128, 2),
            (128, 128, 1),
            (128, 256, 2),
            (256, 256, 1),
            (256, 512, 2),
            (512, 512, 1),
        ]
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        self.blocks = nn.Sequential(*(Block(*p) for p in plan))
        self.fc = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.blocks(self.stem(x)).mean((2, 3)))


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = ResNet18().to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9, nesterov=True)
    images = torch.randn(BATCH, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (BATCH,))

    def step() -> None:
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    def ish_step() -> None:
        with ish(model, layer="fc"):
            step()

    whole = interleaved({"plain": step, "ish": ish_step}, repeats=PAIRS)
    shaped, features = IshLinear.sharing(model.fc), torch.randn(BATCH, 512).relu().requires_grad_()
    head = {
        name: partial(repeat, layer, features, labels) for name, layer in {"plain": model.fc, "ish": shaped}.items()
    }
    alone = {name: seconds / REPEATS for name, seconds in interleaved(head).items()}
    rows = [
        row("training step, ResNet-18, 64 images of 32 x 32", whole, whole["ish"] / whole["plain"]),
        row("its final layer alone, forward and backward", alone, 1 + (alone["ish"] - alone["plain"]) / whole["plain"]),
    ]
    notes = [
        f"First row: least of {PAIRS} steps each, taken in turns, one thread, seconds of the process. On a shared machine it is"
        " good to about 5 %, more than ISH's whole cost; the second row decides.",
        "Second row: the layer that ISH changes, timed apart from the noise of the convolutions; its ratio is that of the whole"
        " step, 1 + (ISH - plain) / plain step.",
    ]
    report("ish_cost", "What ISH adds to a training step", rows, notes)


def row(work: str, times: dict[str, float], ratio: float) -> dict[str, Any]:
    return {
        "work": work,
        "plain ms": times["plain"] * 1e3,
        "ISH ms": times["ish"] * 1e3,
        "ratio": ratio,
        "at most": WANTED,
    }


def repeat(layer: nn.Module, features: Tensor, labels: Tensor) -> None:
    for _ in range(REPEATS):
        F.cross_entropy(layer(features), labels).backward()


if __name__ == "__main__":
    main()

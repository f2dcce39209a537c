"""Train small networks of other families on the six ID classes of cifar6, so that a choice is tested on more than ResNets.

    python tools/fetch.py cifar10
    python tools/auto_networks.py            # all into runs/auto, or those named; finished ones are skipped

The 500 validation images of the benchmark are never trained on. Weights are written as NAME.safetensors, the log as NAME.csv.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.nn import functional

from cifar6_sources import CIFAR10_CLASSES, ID_CLASSES
from idness.core.files import atomic_write
from idness.data import embedded
from idness.networks.architectures import PreactBlock

REPOSITORY = Path(__file__).resolve().parents[1]
NETS = REPOSITORY / "runs" / "auto"
BATCH = 128


class ResNet(nn.Module):
    """A pre-activation ResNet; its features are the mean over all places after the last batch norm and ReLU."""

    def __init__(self, plan: tuple[tuple[int, int], ...], stem: int, stride: int = 1, classes: int = 6) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, stem, 3, stride, 1, bias=False)
        widths = [stem, *(width for width, _ in plan)]
        self.blocks = nn.Sequential(*(PreactBlock(a, b, s) for a, (b, s) in zip(widths, plan, strict=False)))
        self.bn = nn.BatchNorm2d(widths[-1])
        self.fc = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of normalised images."""
        return self.fc(torch.relu(self.bn(self.blocks(self.conv(x)))).mean((2, 3)))


def wide() -> nn.Module:
    """Return a short and wide network, much like WRN-10-3: 256 features after batch norm and ReLU."""
    return ResNet(((48, 2), (96, 2), (256, 2)), stem=16)


def narrow() -> nn.Module:
    """Return a narrow network like ResNet-20: 64 features, of which ten decide SCALE's ratio."""
    return ResNet(((32, 1), (64, 2), (64, 1)), stem=16, stride=2)


class Vgg(nn.Module):
    """A VGG without batch norm: 256 features out of a hidden linear layer, ReLU and dropout."""

    def __init__(self, classes: int = 6) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, width in ((3, 32), (32, 64), (64, 128), (128, 128)):
            layers += [nn.Conv2d(before, width, 3, 1, 1), nn.ReLU()]
            if (before, width) != (64, 128):
                layers.append(nn.MaxPool2d(2))
        self.body = nn.Sequential(*layers)
        self.hidden = nn.Linear(128 * 16, 256)
        self.drop1, self.drop2 = nn.Dropout(0.2), nn.Dropout(0.3)
        self.fc = nn.Linear(256, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.fc.weight, std=0.01)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of normalised images."""
        x = torch.relu(self.hidden(self.drop1(self.body(x).flatten(1))))
        return self.fc(self.drop2(x))


def plain(activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    """Return convolutions with batch norm, an activation function and max pooling one after the other: 160 features."""
    layers: list[nn.Module] = []
    for before, width, pool in ((3, 32, True), (32, 64, True), (64, 96, False), (96, 128, True), (128, 160, False)):
        layers += [nn.Conv2d(before, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), activation()]
        layers += [nn.MaxPool2d(2)] if pool else []
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(160, 6))


class Residual(nn.Sequential):
    """Layers whose output is added to their input."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum."""
        return x + super().forward(x)


def gelu() -> nn.Module:
    """Return blocks as in ConvNeXt, and 128 features of either sign out of a LayerNorm."""

    def block(width: int) -> nn.Module:
        conv, norm = nn.Conv2d(width, width, 5, 1, 2, groups=width), nn.GroupNorm(1, width)
        return Residual(conv, norm, nn.Conv2d(width, 2 * width, 1), nn.GELU(), nn.Conv2d(2 * width, width, 1))

    narrow, wide = (nn.Sequential(*(block(width) for _ in range(count))) for width, count in ((64, 2), (128, 3)))
    body = (nn.Conv2d(3, 64, 2, 2), narrow, nn.Conv2d(64, 128, 2, 2), wide, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*body, nn.LayerNorm(128), nn.Linear(128, 6))


class Layer(nn.Module):
    """One pre-norm transformer layer with GELU."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens after attention and the hidden layer."""
        count, tokens, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(count, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(count, tokens, width)
        x = x + self.out(seen)
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Vit(nn.Module):
    """A small vision transformer on the tokens of a stem; features are those of a class token, or the mean over all tokens."""

    def __init__(self, stem: nn.Module, tokens: int, width: int, depth: int, *, token: bool = False) -> None:
        super().__init__()
        self.stem = stem
        self.place = nn.Parameter(torch.randn(1, tokens, width) * 0.02)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02) if token else None
        self.layers = nn.Sequential(*(Layer(width, 4) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.fc = nn.Linear(width, 6)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of normalised images."""
        # Without a copy in order, every layer works on strided memory, three times as long.
        x = self.stem(x).flatten(2).transpose(1, 2).contiguous() + self.place
        if self.token is None:
            return self.fc(self.norm(self.layers(x)).mean(1))
        return self.fc(self.norm(self.layers(torch.cat([self.token.expand(len(x), -1, -1), x], dim=1))[:, 0]))


def vit() -> nn.Module:
    """Return a transformer on 64 tokens of two convolutions, whose features are the mean over all tokens."""
    return Vit(nn.Sequential(nn.Conv2d(3, 48, 3, 2, 1), nn.GELU(), nn.Conv2d(48, 96, 3, 2, 1)), 64, 96, 4)


def vit_token() -> nn.Module:
    """Return a transformer on 16 tokens, patches of 8 x 8 pixels, with a class token."""
    return Vit(nn.Sequential(nn.Conv2d(3, 64, 4, 4), nn.GELU(), nn.Conv2d(64, 128, 2, 2)), 16, 128, 4, token=True)


def hybrid() -> nn.Module:
    """Return residual blocks that make 16 tokens, and two transformer layers with a class token."""
    stem = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), PreactBlock(32, 64, 2), PreactBlock(64, 128, 2))
    return Vit(stem, 16, 128, 2, token=True)


@dataclass(frozen=True)
class Recipe:
    """How one network is trained."""

    make: Callable[[], nn.Module]
    epochs: int
    rate: float
    decay: float
    adam: bool = False

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer."""
        if self.adam:
            return torch.optim.AdamW(model.parameters(), self.rate, weight_decay=self.decay)
        return torch.optim.SGD(model.parameters(), self.rate, 0.9, nesterov=True, weight_decay=self.decay)


RECIPES = {
    "narrow": Recipe(narrow, 10, 0.2, 5e-4),
    "vgg": Recipe(Vgg, 10, 0.05, 5e-4),
    "vit": Recipe(vit, 14, 2e-3, 0.05, adam=True),
    "vit-token": Recipe(vit_token, 14, 2e-3, 0.05, adam=True),
    "hybrid": Recipe(hybrid, 10, 2e-3, 0.05, adam=True),
    "wide": Recipe(wide, 8, 0.2, 5e-4),
    "plain": Recipe(plain, 10, 0.1, 5e-4),
    "silu": Recipe(partial(plain, nn.SiLU), 10, 0.1, 5e-4),
    "gelu": Recipe(gelu, 12, 2e-3, 0.05, adam=True),
}


def read(archive: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Read the ID part of CIFAR-10 as images and labels: training without the benchmark's validation images, and test."""
    with np.load(archive, allow_pickle=False) as file:
        arrays = dict(file)
    places = np.full(len(CIFAR10_CLASSES), -1)
    places[[CIFAR10_CLASSES.index(name) for name in ID_CLASSES]] = range(len(ID_CLASSES))
    labels, tests = places[arrays["train_labels"]], places[arrays["test_labels"]]
    kept = labels >= 0
    for place in range(len(ID_CLASSES)):
        kept[np.flatnonzero(labels == place)[-(84 if place < 2 else 83) :]] = False
    train, test = normalised(arrays["train_images"][kept]), normalised(arrays["test_images"][tests >= 0])
    return train, torch.from_numpy(labels[kept]), test, torch.from_numpy(tests[tests >= 0])


def normalised(images: np.ndarray) -> Tensor:
    """Convert uint8 (N, H, W, C) to normalised (N, C, H, W)."""
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in embedded.normalisation())
    return (torch.from_numpy(images).permute(0, 3, 1, 2).float().div_(255) - mean) / std


def augmented(images: Tensor, draw: torch.Generator) -> Tensor:
    """Shift by up to four pixels and flip."""
    count = len(images)
    padded = functional.pad(images, (4, 4, 4, 4))
    top, left = torch.randint(9, (2, count, 1, 1), generator=draw)
    rows, columns = top + torch.arange(32).view(1, 32, 1), left + torch.arange(32).view(1, 1, 32)
    flip = torch.rand(count, 1, 1, generator=draw) < 0.5
    columns = torch.where(flip, columns.flip(2), columns)
    return padded.permute(0, 2, 3, 1)[torch.arange(count).view(-1, 1, 1), rows, columns].permute(0, 3, 1, 2)


def train(name: str, to: Path, archive: Path) -> None:
    """Train one network, unless it is trained already."""
    final = to / f"{name}.safetensors"
    if final.is_file():
        return
    torch.manual_seed(0)
    recipe, (images, labels, test, test_labels) = RECIPES[name], read(archive)
    model = recipe.make().to(memory_format=torch.channels_last)
    steps, lines = len(images) // BATCH, []
    optimizer = recipe.optimizer(model)
    plan = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, recipe.rate, total_steps=recipe.epochs * steps, pct_start=0.25, cycle_momentum=False
    )
    for epoch in range(recipe.epochs):
        start, draw, total = time.process_time(), torch.Generator().manual_seed(epoch), 0.0
        model.train()
        for rows in torch.randperm(len(images), generator=draw)[: steps * BATCH].view(-1, BATCH):
            batch = augmented(images[rows], draw).contiguous(memory_format=torch.channels_last)
            loss = functional.cross_entropy(model(batch), labels[rows])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            plan.step()
            total += loss.item()
        model.eval()
        with torch.inference_mode():
            found = torch.cat([model(part).argmax(1) for part in test.split(500)])
        right = 100 * float((found == test_labels).double().mean())
        lines.append(f"{epoch + 1},{total / steps:.4f},{right:.2f},{time.process_time() - start:.0f}")
        print(f"{name} epoch,loss,test %,cpu s: {lines[-1]}", flush=True)
    to.mkdir(parents=True, exist_ok=True)
    atomic_write(to / f"{name}.csv", "\n".join([*lines, ""]))
    atomic_write(final, save({key: value.contiguous() for key, value in model.state_dict().items()}))


def load(name: str, folder: Path = NETS) -> nn.Module:
    """Load one trained network."""
    model = RECIPES[name].make()
    model.load_state_dict(load_file(folder / f"{name}.safetensors"))
    return model.eval()


def main() -> int:
    """Train the named networks."""
    parser = argparse.ArgumentParser(description="Train small networks of other families on cifar6's ID classes.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(RECIPES)}; all if not given")
    given = parser.parse_args()
    if set(given.names) - set(RECIPES):
        parser.error(f"a network must be one of {', '.join(RECIPES)}, got {', '.join(given.names)}")
    torch.set_num_threads(1)
    for name in given.names or RECIPES:
        train(name, NETS, REPOSITORY / ".data" / "cifar10.npz")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Endings of small networks: those that work, with their logits, and those that are refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES, WIDTH = 5, 12


class Ends(nn.Module):
    """A network that ends in a function of itself and its feature maps."""

    def __init__(self, end: Callable[[Any, Tensor], Any], classes: int = CLASSES) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(3, WIDTH, 3), nn.BatchNorm2d(WIDTH), nn.ReLU())
        self.fc, self.other = nn.Linear(WIDTH, classes), nn.Linear(WIDTH, classes)
        self.conv = nn.Conv2d(WIDTH, classes, 1)
        self.register_parameter("prototypes", nn.Parameter(torch.randn(classes, WIDTH)))
        self.end = end

    def maps(self, images: Tensor) -> Tensor:
        return self.body(images)

    def forward(self, images: Tensor) -> Any:
        return self.end(self, self.maps(images))


def pooled(maps: Tensor) -> Tensor:
    return maps.mean(dim=(2, 3))


def logits(net: Any, maps: Tensor) -> Tensor:
    return net.fc(pooled(maps))


def cosine(net: Any, maps: Tensor) -> Tensor:
    return 16 * functional.linear(functional.normalize(pooled(maps)), functional.normalize(net.prototypes))


@dataclass
class Answer:
    """A return value of some networks."""

    scores: Tensor
    embedding: Tensor


def adjusted(net: Any, maps: Tensor) -> Tensor:
    return logits(net, maps) - torch.linspace(-1, 1, net.fc.out_features)


def same(end: Callable[[Any, Tensor], Tensor]) -> tuple[Callable[[Any, Tensor], Any], Callable[[Any, Tensor], Tensor]]:
    """Return an ending whose output is its logits."""
    return end, end


def averaged(net: Any, maps: Tensor, own: float = 0.5) -> Tensor:
    return own * logits(net, maps) + (1 - own) * net.other(maps.amax(dim=(2, 3)))


# Each with what its logits are: the output before a softmax or a sigmoid, and else the output itself.
TAKEN: dict[str, tuple[Callable[[Any, Tensor], Any], Callable[[Any, Tensor], Tensor]]] = {
    "softmax": (lambda net, maps: logits(net, maps).softmax(dim=1), logits),
    "log-softmax": (lambda net, maps: functional.log_softmax(logits(net, maps), dim=-1), logits),
    "sigmoid": (lambda net, maps: logits(net, maps).sigmoid(), logits),
    "temperature": same(lambda net, maps: logits(net, maps) / 2.5),
    "temperature in place": (lambda net, maps: logits(net, maps).div_(3), lambda net, maps: logits(net, maps) / 3),
    "temperature, softmax": (
        lambda net, maps: (logits(net, maps) / 2).softmax(dim=1),
        lambda net, maps: logits(net, maps) / 2,
    ),
    "logit adjustment": same(adjusted),
    "cosine": same(cosine),
    "cosine, softmax": (lambda net, maps: cosine(net, maps).softmax(dim=1), cosine),
    "1x1 convolution, then mean": same(lambda net, maps: pooled(net.conv(maps))),
    "mean, then 1x1 convolution": (
        lambda net, maps: net.conv(maps.mean(dim=(2, 3), keepdim=True)),
        lambda net, maps: pooled(net.conv(maps)),
    ),
    "matmul": same(lambda net, maps: pooled(maps) @ net.prototypes.t()),
    "matmul and bias": same(lambda net, maps: pooled(maps) @ net.prototypes.t() + net.fc.bias),
    "functional": same(lambda net, maps: functional.linear(pooled(maps), net.prototypes, net.fc.bias)),
    "addmm": same(lambda net, maps: torch.addmm(net.fc.bias, pooled(maps), net.prototypes.t())),
    "features and logits": (lambda net, maps: (pooled(maps), logits(net, maps)), logits),
    "logits and features": (lambda net, maps: (logits(net, maps), pooled(maps)), logits),
    "dictionary": (lambda net, maps: {"embedding": pooled(maps), "prediction": logits(net, maps)}, logits),
    "dictionary with logits": (
        lambda net, maps: {"auxiliary": net.other(pooled(maps)), "logits": logits(net, maps)},
        logits,
    ),
    "dataclass": (lambda net, maps: Answer(logits(net, maps), pooled(maps)), logits),
    "two heads, averaged": same(averaged),
    "two heads, averaged, softmax": (
        lambda net, maps: averaged(net, maps, 0.3).softmax(dim=1),
        lambda net, maps: averaged(net, maps, 0.3),
    ),
    "one layer, used twice": same(lambda net, maps: (net.fc(pooled(maps)) + net.fc(maps.amax(dim=(2, 3)))) / 2),
    "every position, then mean": (
        lambda net, maps: net.fc(maps.flatten(2).transpose(1, 2)).mean(dim=1),
        logits,
    ),
}


BINARY: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "logit": logits,
    "squeezed": lambda net, maps: logits(net, maps).squeeze(1),
    "sigmoid": lambda net, maps: logits(net, maps).sigmoid(),
    "sigmoid, squeezed": lambda net, maps: logits(net, maps).sigmoid().squeeze(1),
    "convolution": lambda net, maps: pooled(net.conv(maps)),
}


class Averaged(nn.Module):
    """The mean of the probabilities of several networks."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList([Ends(logits) for _ in range(3)])
        for seed, net in enumerate(self.nets):
            torch.manual_seed(seed)
            net.fc.reset_parameters()

    def forward(self, images: Tensor) -> Tensor:
        return torch.stack([net(images).softmax(dim=1) for net in self.nets]).mean(dim=0)


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(plain().eval(), torch.rand(1, 3, 9, 9))


def quantized() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(plain().eval(), {nn.Linear})


def plain() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, WIDTH, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH, CLASSES)
    )


def distances(net: Any, maps: Tensor) -> Tensor:
    return -torch.cdist(pooled(maps), net.prototypes)


REFUSED: dict[str, Callable[[], nn.Module]] = {
    "tanh": lambda: Ends(lambda net, maps: torch.tanh(logits(net, maps))),
    "ReLU": lambda: Ends(lambda net, maps: logits(net, maps).relu()),
    "convolution, ReLU": lambda: Ends(lambda net, maps: pooled(net.conv(maps).relu_())),
    "maximum over positions": lambda: Ends(lambda net, maps: net.conv(maps).amax(dim=(2, 3))),
    "distances": lambda: Ends(distances),
    "mean of probabilities": Averaged,
    "TorchScript": scripted,
    "int8": quantized,
}

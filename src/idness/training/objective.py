"""The base class of training methods, modules around the network that compute the loss; and the settings of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from idness.core.errors import OptionError
from idness.core.options import check_options, check_positive, check_share, count, nonnegative, one_of
from idness.data import embedded

CIFAR_MEAN, CIFAR_STD = embedded.normalisation()


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a run, which, together with network, data and method, determine the result.

    Args:
        epochs: number of passes over the training images.
        lr: peak learning rate.
        weight_decay: L2 decay of all parameters, without exceptions.
        momentum: momentum of SGD.
        nesterov: whether to use Nesterov momentum.
        batch_size: images per step and process.
        accumulate: number of batches whose gradients are summed for one step.
        warmup: epochs during which the learning rate rises linearly to `lr`.
        milestones: epochs after which the learning rate is multiplied by `gamma`; without any, it follows a cosine to 0.
        gamma: factor at each milestone.
        clip: maximum norm of the gradient; `None` for no limit.
        ema: decay of the exponential moving average of the weights, which becomes the result; `None` keeps the last weights.
        augment: whether to apply random crops and flips.
        crops: `shift` by up to 4 pixels, `resized` random crops, or `auto`: shift for sides up to 64 pixels, resized above.
        precision: 32-true, bf16-mixed, 16-mixed, or auto: mixed on a GPU (bf16 if supported) and 32-true on a CPU.
        channels_last: whether to use this memory layout if the network supports it; faster on most machines.
        seed: random seed, for the order of the images and all other randomness.
        checkpoint_every: number of steps between checkpoints.
        mean: mean of each channel, in [0, 1]; by default, `finetune` uses the network's own.
        std: standard deviation of each channel.
    """

    epochs: int = count(10)
    lr: float = nonnegative(0.003)
    weight_decay: float = nonnegative(5e-6)
    momentum: float = 0.9
    nesterov: bool = True
    batch_size: int = count(128)
    accumulate: int = count(1)
    warmup: float = nonnegative(0.0)
    milestones: tuple[int, ...] = ()
    gamma: float = nonnegative(0.1)
    clip: float | None = None
    ema: float | None = None
    augment: bool = True
    crops: str = one_of("auto", "shift", "resized")
    precision: str = one_of("32-true", "bf16-mixed", "16-mixed", "auto")
    channels_last: bool = True
    seed: int = 0
    checkpoint_every: int = count(200)
    mean: tuple[float, ...] = CIFAR_MEAN
    std: tuple[float, ...] = CIFAR_STD

    def __post_init__(self) -> None:
        check_options(self)
        for name in ("momentum", "ema"):
            if getattr(self, name) is not None:
                check_share(self, name)
        if self.clip is not None:
            check_positive(self, "clip")
        for name, kind in {"nesterov": bool, "augment": bool, "channels_last": bool, "seed": int}.items():
            if type(value := getattr(self, name)) is not kind:
                raise OptionError(f"training: {name} must be of type {kind.__name__}, got {value!r}")
        for name in ("milestones", "mean", "std"):
            values = getattr(self, name)
            if not isinstance(values, tuple | list) or not all(type(value) in (int, float) for value in values):
                raise OptionError(f"training: {name} must be a list of numbers, got {values!r}")

    def rate(self, step: int, steps_per_epoch: int) -> float:
        """Return the learning rate of one step."""
        epoch = step / steps_per_epoch
        if epoch < self.warmup:
            return self.lr * (step + 1) / (self.warmup * steps_per_epoch)
        if self.milestones:
            return self.lr * self.gamma ** sum(epoch >= m for m in self.milestones)
        progress = (epoch - self.warmup) / max(self.epochs - self.warmup, 1e-9)
        return self.lr * 0.5 * (1 + math.cos(math.pi * progress))


class Outcome(NamedTuple):
    """The loss of one batch, and the logits from which its accuracy is computed."""

    loss: Tensor
    logits: Tensor


@dataclass(eq=False, repr=False)
class Objective(nn.Module):
    """Plain cross-entropy; a training method overrides `forward` and adds its options as fields.

    Random numbers come from torch's global generator, which the loop seeds at every step, so that a resumed run draws the same
    numbers.

    Args:
        model: the network; its parameters are trained in place.
        classes: the number of classes.
        mean: mean of each colour, in [0, 1].
        std: standard deviation of each colour.
    """

    recipe: ClassVar[Mapping[str, Any]] = {}

    model: nn.Module
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        made = super().__new__(cls)
        nn.Module.__init__(made)  # before the fields are set: some are modules
        return made

    def __post_init__(self) -> None:
        check_options(self)
        # Not persistent: a checkpoint contains only what is learned; the settings contain the rest.
        self.register_buffer("centre", torch.tensor(self.mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("spread", torch.tensor(self.std).view(-1, 1, 1), persistent=False)

    def normalise(self, images: Tensor) -> Tensor:
        """Return (N, 3, H, W) values from 0 to 255 normalised as the network expects."""
        return (images.float() / 255 - self.get_buffer("centre")) / self.get_buffer("spread")

    def forward(self, images: Tensor, labels: Tensor) -> Outcome:
        """Return the loss of one batch of uint8 images."""
        logits = self.model(self.normalise(images))
        return Outcome(F.cross_entropy(logits, labels), logits)

    def view(self) -> Callable[[Tensor], Tensor] | None:
        """Return the function that worker processes apply to each streamed image (3, H, W); `None` for the identity."""
        return None

    def prepare(self, images: Tensor, labels: Tensor) -> None:
        """Initialise the method from some training images before the first step."""

    def after_step(self) -> None:
        """Update state that depends on the parameters but has no gradient."""

    def finish(self) -> nn.Module:
        """Return the trained network, with its original layers."""
        return self.model


METHODS: dict[str, type[Objective]] = {}


def method(name: str) -> Callable[[type[Objective]], type[Objective]]:
    """Return a decorator that registers a training method under the name used on the command line."""

    def register(cls: type[Objective]) -> type[Objective]:
        METHODS[name] = cls
        return cls

    return register


@method("plain")
class Plain(Objective):
    """Plain cross-entropy, the control experiment of equal length for every other method."""

    # ISH's recipe, so that the two differ in only one respect.
    recipe = {"epochs": 10, "lr": 0.003, "weight_decay": 5e-6}

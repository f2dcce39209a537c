"""The settings of one training run, and the learning rate they give at each step."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from idness.core.checks import check_options, check_positive, check_share, count, nonnegative, one_of
from idness.core.errors import OptionError
from idness.data import embedded

CIFAR_MEAN, CIFAR_STD = embedded.normalisation()


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Holds everything that decides what a run computes, besides network, data and method.

    Args:
        epochs: passes over the training images.
        lr: highest learning rate.
        weight_decay: L2 decay of every parameter; nothing is left out silently.
        momentum: momentum of SGD.
        nesterov: use Nesterov's momentum.
        batch_size: images per step and process.
        accumulate: batches whose gradients make one step.
        warmup: epochs during which the rate rises linearly to `lr`.
        milestones: epochs after which the rate is multiplied by `gamma`; without any it falls as a cosine to 0.
        gamma: factor at each milestone.
        clip: largest norm of the gradient; None leaves it alone.
        ema: decay of a running mean of the weights, which then is the result; None keeps the last weights.
        augment: random crops and flips.
        crops: `shift` by up to 4 pixels, `resized` random parts, or `auto`: shifts up to 64 pixels a side, resized above.
        precision: 32-true, bf16-mixed, 16-mixed, or auto: mixed on a GPU, bf16 where it has it, and 32-true on a CPU.
        channels_last: memory layout of images and kernels, where the network can take it; faster on most machines.
        seed: decides the order of the images and whatever else is random.
        checkpoint_every: steps between checkpoints.
        mean: mean of each colour, in [0, 1]; `finetune` takes the network's own if not given.
        std: standard deviation of each colour.
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
        for name, kind, wanted in (("nesterov", bool, "true or false"), ("augment", bool, "true or false"),
                                   ("channels_last", bool, "true or false"), ("seed", int, "a whole number")):  # fmt: skip
            if type(getattr(self, name)) is not kind:
                raise OptionError(f"training: {name} must be {wanted}, got {getattr(self, name)!r}")
        for name, whole in (("milestones", True), ("mean", False), ("std", False)):
            values = getattr(self, name)
            numbers = isinstance(values, tuple | list) and all(
                isinstance(value, int if whole else int | float) and not isinstance(value, bool) for value in values
            )
            if not numbers:
                raise OptionError(f"training: {name} must be a list of numbers, got {values!r}")

    def rate(self, step: int, steps_per_epoch: int) -> float:
        """Compute the learning rate of one step."""
        epoch = step / steps_per_epoch
        if epoch < self.warmup:
            return self.lr * (step + 1) / (self.warmup * steps_per_epoch)
        if self.milestones:
            return self.lr * self.gamma ** sum(epoch >= m for m in self.milestones)
        progress = (epoch - self.warmup) / max(self.epochs - self.warmup, 1e-9)
        return self.lr * 0.5 * (1 + math.cos(math.pi * progress))


SETTING_NAMES = frozenset(field.name for field in fields(Settings))

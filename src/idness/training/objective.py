"""What a training method is: a module around the network whose forward pass gives the loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from idness.core.checks import check_options
from idness.core.errors import unknown_name


class Outcome(NamedTuple):
    """What one batch gives: the loss to descend, and logits to count the right answers with."""

    loss: Tensor
    logits: Tensor


@dataclass(eq=False, repr=False)
class Objective(nn.Module):
    """Give the plain cross-entropy; the other methods override `forward`, and add their options as fields.

    Whatever is random in a method comes from torch's global generator, which the loop seeds at every step: so a run
    that is killed and resumed draws the same numbers.

    Args:
        model: the network; its parameters are trained in place.
        classes: number of classes.
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
        # Not persistent: a checkpoint holds what is learned, the settings hold the rest.
        self.register_buffer("centre", torch.tensor(self.mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("spread", torch.tensor(self.std).view(-1, 1, 1), persistent=False)

    def normalise(self, images: Tensor) -> Tensor:
        """Turn (N, 3, H, W) values of 0 to 255 into what the network takes."""
        return (images.float() / 255 - self.get_buffer("centre")) / self.get_buffer("spread")

    def forward(self, images: Tensor, labels: Tensor) -> Outcome:
        """Compute the loss of one batch of uint8 images."""
        logits = self.model(self.normalise(images))
        return Outcome(F.cross_entropy(logits, labels), logits)

    def view(self) -> Callable[[Tensor], Tensor] | None:
        """Give what makes, in a worker process, of one streamed image (3, H, W) what `forward` takes of it; none for the image itself."""
        return None

    def prepare(self, images: Tensor, labels: Tensor) -> None:
        """Look at some training images before the first step."""

    def after_step(self) -> None:
        """Update what follows the parameters without a gradient."""

    def finish(self) -> nn.Module:
        """Leave the network as it was built, with what it learned, and give it."""
        return self.model


METHODS: dict[str, type[Objective]] = {}


def method(name: str) -> Callable[[type[Objective]], type[Objective]]:
    """Register a training method under the name used on the command line."""

    def register(cls: type[Objective]) -> type[Objective]:
        METHODS[name] = cls
        return cls

    return register


@method("plain")
class Plain(Objective):
    """Train on with the plain cross-entropy, as long as the others: the control that every other row is compared with."""

    # ISH's recipe, so that the two differ in one thing only.
    recipe = {"epochs": 10, "lr": 0.003, "weight_decay": 5e-6}


def find_method(name: str) -> type[Objective]:
    """Find a training method by its name."""
    if name not in METHODS:
        raise unknown_name("training method", name, METHODS)
    return METHODS[name]

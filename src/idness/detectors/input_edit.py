"""Detectors that change an image along a gradient, and score what the network makes of the changed one."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, final

import torch
from torch import Tensor

from idness.core.types import InputEditor
from idness.detectors.detector import Detector

Pass = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Runs the network on images and gives features and logits."""


class InputEdit(Detector):
    """Looks at each image twice: as it is, and as `perturb` changes it.

    `learn` and `rate` find what the network makes of the changed images in `acts.edited`. Each such method costs passes of
    its own, so a comparison runs it only where it is named.
    """

    forward_passes = 2
    backward_passes = 1
    changed_by: ClassVar[Sequence[str]] = ()
    """The options that decide how images are changed; the search grid has only others, which need no further pass."""

    @abstractmethod
    def perturb(self, network: Pass, images: Tensor) -> Tensor:
        """Change images, as the network takes them, never in place; the first call of the network is on the images as they are."""

    @property
    @final
    def input_edit(self) -> InputEditor:
        return self

    @final
    def edit_key(self) -> str:
        """Identify the change: detectors of one method that agree in these options share the changed images."""
        options = self.options()
        return json.dumps([self.name, {name: options[name] for name in self.changed_by}], sort_keys=True)


def input_gradient(value: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """Compute the gradient of each image's value with respect to the image; parameters get none."""
    with torch.enable_grad():
        inputs = images.detach().clone().requires_grad_()
        (gradient,) = torch.autograd.grad(value(inputs).sum(), inputs)
    return gradient

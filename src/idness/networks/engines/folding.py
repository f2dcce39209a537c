"""A copy of a network that does less for the same features: BatchNorm folded into the convolutions before it, channels last."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from idness.networks.modes import inference
from idness.networks.probing import call


def fold(model: nn.Module, images: Tensor) -> int:
    """Fold each BatchNorm into the convolution that it directly follows, and say how many were.

    The network is changed: give a copy. What else becomes of a convolution's output is not known, so compare what the
    network then gives.
    """
    pairs = list(_pairs(model, images))
    for before, after in pairs:
        convolution, norm = model.get_submodule(before), model.get_submodule(after)
        assert isinstance(convolution, nn.Conv2d)
        assert isinstance(norm, nn.BatchNorm2d)
        with inference(model):
            folded = fuse_conv_bn_eval(convolution, norm)
        _put(model, before, folded)
        _put(model, after, nn.Identity())
    return len(pairs)


def move_channels_last(model: nn.Module) -> None:
    """Give each convolution weights of its own that lie channels last; those that it shared stay as they are."""
    for module in model.modules():
        weight = module._parameters.get("weight") if type(module) is nn.Conv2d else None
        if weight is not None and not weight.is_contiguous(memory_format=torch.channels_last):
            own = weight.detach().clone(memory_format=torch.channels_last)
            module.weight = nn.Parameter(own, requires_grad=False)


def _pairs(model: nn.Module, images: Tensor) -> Iterator[tuple[str, str]]:
    """Find the convolutions whose output enters a BatchNorm as it is, where both are used once."""
    with _calls(model) as calls, inference(model):
        call(model, images)
    used = [name for name, *_ in calls]
    for before, module, _, output in calls:
        if type(module) is not nn.Conv2d or used.count(before) > 1:
            continue
        for after, norm, entered, _ in calls:
            if type(norm) is nn.BatchNorm2d and entered is output and used.count(after) == 1 and _is_fixed(norm):
                yield before, after


def _is_fixed(norm: nn.BatchNorm2d) -> bool:
    """Tell whether it normalises by what it has learned, not by the batch."""
    return norm.running_mean is not None and norm.running_var is not None


@contextmanager
def _calls(model: nn.Module) -> Iterator[list[tuple[str, nn.Module, Any, Any]]]:
    """List each call of a convolution or BatchNorm with what enters and leaves it, while the block runs."""
    calls: list[tuple[str, nn.Module, Any, Any]] = []
    hooks = []
    for name, module in model.named_modules():
        if type(module) in (nn.Conv2d, nn.BatchNorm2d) and not module._forward_hooks:

            def note(module: nn.Module, entered: tuple[Any, ...], output: Any, name: str = name) -> None:
                calls.append((name, module, entered[0] if entered else None, output))

            hooks.append(module.register_forward_hook(note))
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _put(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, own = name.rpartition(".")
    model.get_submodule(parent)._modules[own] = module

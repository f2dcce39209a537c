"""Captures the input of a network's final ReLU, for any network, without editing it.

One forward pass is observed call by call. The final ReLU is the last one whose pooled output equals the features that enter the
final linear layer, so nothing depends on names, and functional ReLUs (DenseNet) are found as well as modules (ResNet). The paper
tests "pre-ReLU activations" without saying how they are pooled: here the input is pooled as the network pools the output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from idness.core.types import Activations
from idness.networks.split import SplitModel, unpack

ACTIVATIONS = {
    "relu", "relu6", "hardtanh", "leaky_relu", "silu", "gelu", "hardswish", "elu", "selu", "mish", "softplus", "tanh", "sigmoid"
}  # fmt: skip
TOLERANCE = 1e-4
"""How far pooled ReLU outputs may be from the features, relative to the largest feature."""


def capture(split: SplitModel, batch: Any) -> tuple[Activations, str]:
    """Run one batch, in any form that `SplitModel.stream` takes, and return its activations and the last activation function's name.

    If the features are the pooled output of a final ReLU, the activations have `pre_relu` and `rectifier`.
    """
    watch = _Watch(split.width)
    images, labels = unpack(batch)
    with watch:
        # The network as it is: other engines call no function that could be watched.
        found = split.run(images)
    acts = replace(Activations(*found).to("cpu"), labels=labels)
    # The last one is nearly always it; an auxiliary branch may come after.
    for kind, cap, before in reversed(watch.seen):
        for pooling, pool in _POOLINGS.items():
            if _same(pool(before.clamp(0.0, cap)), acts.features):
                return replace(acts, pre_relu=pool(before), rectifier=f"{kind}{pooling}"), watch.last
    return acts, watch.last


def _same(pooled: Tensor, features: Tensor) -> bool:
    if pooled.shape != features.shape:
        return False
    return float((pooled - features).abs().max()) <= TOLERANCE * (float(features.abs().max()) + 1e-12)


def _mean(values: Tensor) -> Tensor:
    return values.flatten(2).mean(dim=2) if values.ndim > 2 else values


def _max(values: Tensor) -> Tensor:
    return values.flatten(2).amax(dim=2) if values.ndim > 2 else values


_POOLINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "": lambda values: values,
    " and average pooling": _mean,
    " and max pooling": _max,
}


class _Watch(TorchFunctionMode):
    """Records the input of every ReLU that is as wide as the features; only the last two are kept."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.seen: list[tuple[str, float, Tensor]] = []
        self.last = ""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        name = getattr(func, "__name__", "").strip("_")
        self.last = name if name in ACTIVATIONS else self.last
        found = _as_relu(func, args, options)
        if found is not None:
            kind, cap, before = found
            if before.ndim in (2, 4) and before.shape[1] == self.width:
                # An in-place ReLU overwrites its input: copy first.
                self.seen = [*self.seen[-1:], (kind, cap, before.detach().float().cpu().clone())]
        return func(*args, **options)


_RELUS = {functional.relu, functional.relu_, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_}
_HARDTANHS = {functional.hardtanh, functional.hardtanh_}


def _as_relu(func: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> tuple[str, float, Tensor] | None:
    values = args[0] if args else options.get("input")
    if not isinstance(values, Tensor):
        return None
    if func in _RELUS:
        return "ReLU", float("inf"), values
    if func is functional.relu6:
        return "ReLU6", 6.0, values
    if func in _HARDTANHS:
        low = args[1] if len(args) > 1 else options.get("min_val", -1.0)
        high = args[2] if len(args) > 2 else options.get("max_val", 1.0)
        if low == 0.0:
            return "ReLU6", float(high), values
    return None

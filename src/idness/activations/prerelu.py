"""Captures what enters a network's final ReLU, for any network, without editing it.

One forward pass is watched call by call. The final ReLU is the last one whose output, pooled, *is* the features that
enter the final linear layer; so nothing depends on names, and functional ReLUs (DenseNet) are seen as well as modules
(ResNet, MobileNet). The paper tests "pre-ReLU activations" and does not say how it pools them: we pool what enters the
ReLU in the way in which the network pools what leaves it, which gives one value per feature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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


@dataclass(frozen=True)
class Rectifier:
    """Describes a network's final ReLU: `relu`, or `relu6` with a cap, and its pooling to features: `none`, `mean` or `max`."""

    kind: str
    pooling: str
    cap: float = float("inf")

    def __str__(self) -> str:
        after = {"none": "", "mean": " and average pooling", "max": " and max pooling"}[self.pooling]
        return {"relu": "ReLU", "relu6": "ReLU6"}[self.kind] + after


@dataclass(frozen=True, eq=False)
class Capture:
    """Holds what a network made of images.

    Where the features are what a final ReLU leaves, `rectifier` describes it, and `pre` is what entered it, pooled to (N, D);
    `last` names the last activation function that ran, such as `relu` or `silu`.
    """

    acts: Activations
    rectifier: Rectifier | None
    pre: Tensor | None
    last: str = ""

    @staticmethod
    def concat(parts: Sequence[Capture]) -> Capture:
        """Join parts row after row; pre-ReLU values are kept when every part has them."""
        acts = Activations.concat(part.acts for part in parts)
        pres = [part.pre for part in parts if part.pre is not None]
        if len(pres) < len(parts):
            return Capture(acts, None, None, parts[0].last)
        return Capture(acts, parts[0].rectifier, torch.cat(pres), parts[0].last)


def capture(split: SplitModel, batch: Any) -> Capture:
    """Run one batch, in any form that `SplitModel.stream` takes, and capture what enters the final ReLU."""
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
                return Capture(acts, Rectifier(kind, pooling, cap), pool(before), watch.last)
    return Capture(acts, None, None, watch.last)


def _same(pooled: Tensor, features: Tensor) -> bool:
    if pooled.shape != features.shape:
        return False
    return float((pooled - features).abs().max()) <= TOLERANCE * (float(features.abs().max()) + 1e-12)


def _mean(values: Tensor) -> Tensor:
    return values.flatten(2).mean(dim=2) if values.ndim > 2 else values


def _max(values: Tensor) -> Tensor:
    return values.flatten(2).amax(dim=2) if values.ndim > 2 else values


_POOLINGS: dict[str, Callable[[Tensor], Tensor]] = {"none": lambda values: values, "mean": _mean, "max": _max}


class _Watch(TorchFunctionMode):
    """Notes the input of every ReLU that is as wide as the features; the last two are kept, so memory is bounded."""

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
        return "relu", float("inf"), values
    if func is functional.relu6:
        return "relu6", 6.0, values
    if func in _HARDTANHS:
        low = args[1] if len(args) > 1 else options.get("min_val", -1.0)
        high = args[2] if len(args) > 2 else options.get("max_val", 1.0)
        if low == 0.0:
            return "relu6", float(high), values
    return None

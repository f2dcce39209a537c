"""ISH -- Xu et al., "Scaling for Training Time and Post-hoc Out-of-distribution Detection Enhancement", ICLR 2024.

ISH multiplies each image's contribution to the gradient of the final layer's weight by exp(r), where r is the sum of all activations
over the sum of the largest, so that it is sum_i delta_i (a_i exp(r_i))^T instead of sum_i delta_i a_i^T. Nothing else changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from idness.core.errors import OptionError
from idness.detectors.kernels import kept_count
from idness.networks.split import final_linear
from idness.training.objective import Objective, method

LARGEST_R = 80.0
"""Upper limit of r, since exp of larger values overflows float32; r reaches it only if k is below D / 80."""


def ish_activations(features: Tensor, percentile: float, prune: bool = False) -> Tensor:
    """Return rows multiplied by exp(r), where r = (sum of all) / (sum of the k largest) has no gradient.

    Non-negative rows have r in [1, D / k]; clamping r to this range keeps other rows finite. With `prune`, all but the k largest in
    absolute value become 0.
    """
    width = features.shape[-1]
    k = kept_count(width, percentile)
    with torch.no_grad():
        rows = features.detach().abs() if prune else features.detach()
        top = rows.topk(k, dim=-1, sorted=False)
        largest = top.values.sum(-1, keepdim=True)
        r = rows.sum(-1, keepdim=True) / torch.where(largest > 0, largest, 1.0)
        factor = r.clamp(1.0, min(width / k, LARGEST_R)).exp()
        if prune:
            factor = torch.zeros_like(rows).scatter(-1, top.indices, 1.0) * factor
    return features * factor


class _IshFunction(torch.autograd.Function):
    """A linear layer whose weight gradient is computed from the scaled activations."""

    @staticmethod
    def forward(features: Tensor, weight: Tensor, bias: Tensor | None, percentile: float, prune: bool) -> Tensor:
        # Under autocast, the parameters are cast to the dtype of the features, as in nn.Linear.
        dtype = features.dtype
        return F.linear(features, weight.to(dtype), None if bias is None else bias.to(dtype))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        features, weight, bias, ctx.percentile, ctx.prune = inputs
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.save_for_backward(features, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        features, weight = ctx.saved_tensors
        to_features = to_weight = to_bias = None
        if ctx.needs_input_grad[0]:
            to_features = delta @ weight.to(delta.dtype)
        rows = delta.reshape(-1, delta.shape[-1])
        if ctx.needs_input_grad[1]:
            # In at least float32, because exp(r) overflows float16 for r above 11.
            exact = torch.promote_types(weight.dtype, torch.float32)
            scaled = ish_activations(features.to(exact), ctx.percentile, ctx.prune).reshape(-1, features.shape[-1])
            to_weight = (rows.to(exact).T @ scaled).to(weight.dtype)
        if ctx.bias_dtype is not None and ctx.needs_input_grad[2]:
            to_bias = rows.sum(0).to(ctx.bias_dtype)
        return to_features, to_weight, to_bias, None, None


class IshLinear(nn.Linear):
    """An `nn.Linear` whose weight, in training mode, learns from activations scaled by exp(r).

    The output and the gradients of bias and input are those of `nn.Linear`. Second derivatives raise an error: no loss has this gradient.

    Args:
        in_features: width of the input.
        out_features: width of the output.
        bias: whether the layer has a bias.
        percentile: percentage of activations excluded from the sum of the largest.
        prune: whether to exclude them from the gradient too, as the authors' code does.
        device: device of the parameters.
        dtype: type of the parameters.

    Example:
        >>> import torch
        >>> layer = IshLinear(512, 10, percentile=85)
        >>> layer(torch.rand(4, 512)).shape
        torch.Size([4, 10])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        percentile: float = 85.0,
        prune: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if not 0 <= percentile < 100 or 0 < percentile < 1:
            raise OptionError(f"IshLinear: percentile must be in percent, 0 or in [1, 100), got {percentile}")
        super().__init__(in_features, out_features, bias, device, dtype)
        self.percentile = float(percentile)
        self.prune = prune

    @classmethod
    def sharing(cls, linear: nn.Linear, percentile: float = 85.0, prune: bool = False) -> IshLinear:
        """Return an `IshLinear` that shares the parameters of a linear layer."""
        has_bias = linear.bias is not None
        twin = cls(linear.in_features, linear.out_features, has_bias, percentile, prune, device="meta")
        twin.weight, twin.bias = linear.weight, linear.bias
        return twin.train(linear.training)

    def forward(self, input: Tensor) -> Tensor:
        """Return the output, bit for bit that of `nn.Linear`."""
        if not (self.training and torch.is_grad_enabled()):
            return super().forward(input)
        kind = input.device.type
        if torch.is_autocast_enabled(kind) and input.dtype != torch.float64:
            input = input.to(torch.get_autocast_dtype(kind))
        with torch.autocast(kind, enabled=False):
            out: Tensor = _IshFunction.apply(input, self.weight, self.bias, self.percentile, self.prune)
        return out

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, percentile={self.percentile:g}, prune={self.prune}"


class Swapped:
    """A network whose final layer is an `IshLinear`, until `undo` or the end of a `with` block."""

    def __init__(self, model: nn.Module, inner: nn.Module, name: str, linear: nn.Linear, layer: IshLinear) -> None:
        self.model, self.inner, self.name, self.linear, self.layer = model, inner, name, linear, layer
        inner.set_submodule(name, layer)

    def undo(self) -> None:
        """Restore the plain layer, with the learned parameters."""
        # Parameters may have been moved or replaced meanwhile in the IshLinear.
        self.linear.weight, self.linear.bias = self.layer.weight, self.layer.bias
        self.linear.train(self.layer.training)
        self.inner.set_submodule(self.name, self.linear)

    def __enter__(self) -> nn.Module:
        return self.model

    def __exit__(self, *error: object) -> None:
        self.undo()


def ish(model: nn.Module, percentile: float = 85.0, *, prune: bool = False, layer: str | None = None) -> Swapped:
    """Replace a network's final linear layer by an `IshLinear`, for a `with` block or until `undo`.

    Neither the names in `state_dict` nor the network's output change.

    Args:
        model: any classifier with a final linear layer.
        percentile: percentage of activations excluded from the sum of the largest.
        prune: whether to exclude them from the gradient too.
        layer: name of the final layer; found automatically by default.

    Returns:
        A context manager whose value is the network.

    Raises:
        ModelError: if the network has no final linear layer.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> with ish(model, percentile=85):
        ...     model(torch.rand(3, 4)).sum().backward()
        >>> type(model[2]).__name__
        'Linear'
    """
    inner, name, linear = final_linear(model, layer)
    return Swapped(model, inner, name, linear, IshLinear.sharing(linear, percentile, prune))


@method("ish")
@dataclass(eq=False, repr=False)
class Ish(Objective):
    """Cross-entropy in which the final layer's weight learns from activations scaled by exp(r)."""

    recipe = {"epochs": 10, "lr": 0.003, "weight_decay": 5e-6}

    percentile: float = 85.0
    prune: bool = False
    layer: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._swapped = ish(self.model, self.percentile, prune=self.prune, layer=self.layer)

    def finish(self) -> nn.Module:
        """Restore the plain layer and return the network."""
        self._swapped.undo()
        return self.model

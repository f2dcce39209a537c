"""ISH -- Xu et al., "Scaling for Training Time and Post-hoc Out-of-distribution Detection Enhancement", ICLR 2024.

In-distribution-heavy images have a large ratio r of all activations to the largest ones; ISH lets each image move the
final layer's weight by exp(r) times as much as plain training would. Nothing else changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from idness.core.errors import ModelError, OptionError
from idness.detectors.kernels import kept_count
from idness.networks.split import final_linear
from idness.training.objective import Objective, method

LARGEST_R = 80.0
"""exp of more is not finite in float32; r reaches it only where k is below D / 80."""


def ish_activations(features: Tensor, percentile: float, prune: bool = False) -> Tensor:
    """Multiply each row by exp(sum of all / sum of the k largest), a factor without a gradient.

    Rows of a ReLU have r in [1, D / k]; holding r there keeps rows without a positive sum finite. With `prune` all but
    the k largest in absolute value become 0.
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
    """Computes what a linear layer does, but lets its weight learn from the scaled activations."""

    @staticmethod
    def forward(features: Tensor, weight: Tensor, bias: Tensor | None, percentile: float, prune: bool) -> Tensor:
        # Autocast gives features in its own dtype; the parameters follow, as they do in nn.Linear.
        dtype = features.dtype
        return F.linear(features, weight.to(dtype), None if bias is None else bias.to(dtype))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        features, weight, bias, ctx.percentile, ctx.prune = inputs
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.save_for_backward(features, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        delta = grads[0]
        features, weight = ctx.saved_tensors
        with torch.no_grad():
            found = _gradients(ctx, delta, features, weight)
        if torch.is_grad_enabled():  # create_graph=True
            found = [g if g is None else _Refusal.apply(g, delta, features, weight) for g in found]
        return found[0], found[1], found[2], None, None


def _gradients(ctx: Any, delta: Tensor, features: Tensor, weight: Tensor) -> list[Tensor | None]:
    to_features = to_weight = to_bias = None
    if ctx.needs_input_grad[0]:
        to_features = delta @ weight.to(delta.dtype)
    rows = delta.reshape(-1, delta.shape[-1])
    if ctx.needs_input_grad[1]:
        # In at least float32: exp(r) leaves float16 beyond r = 11.
        exact = torch.promote_types(weight.dtype, torch.float32)
        scaled = ish_activations(features.to(exact), ctx.percentile, ctx.prune).reshape(-1, features.shape[-1])
        to_weight = (rows.to(exact).T @ scaled).to(weight.dtype)
    if ctx.bias_dtype is not None and ctx.needs_input_grad[2]:
        to_bias = rows.sum(0).to(ctx.bias_dtype)
    return [to_features, to_weight, to_bias]


class _Refusal(torch.autograd.Function):
    """Passes a gradient on and refuses to differentiate it: ISH's is not the gradient of any loss."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *sources: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise ModelError(
            "IshLinear: its gradient cannot be differentiated again, since no loss has it; use nn.Linear (undo the swap,"
            " or evaluation mode) where second derivatives are needed"
        )


class IshLinear(nn.Linear):
    """Compute what `nn.Linear` computes, and learn its weight from activations scaled by exp(r).

    Only in training mode; the gradients of bias and input are the ordinary ones.

    Args:
        in_features: width of the input.
        out_features: width of the output.
        bias: have a bias.
        percentile: share of activations, in percent, left out of the sum of the largest.
        prune: leave these activations out of the gradient too, as the public trainer does.
        device: where the parameters are.
        dtype: type of the parameters.
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
        """Make the twin of a linear layer: the same parameter objects under the same names."""
        has_bias = linear.bias is not None
        twin = cls(linear.in_features, linear.out_features, has_bias, percentile, prune, device="meta")
        twin.weight = linear.weight
        if has_bias:
            twin.bias = linear.bias
        return twin.train(linear.training)

    def forward(self, input: Tensor) -> Tensor:
        """Compute the logits, bit for bit those of `nn.Linear`."""
        if not (self.training and torch.is_grad_enabled()):
            return super().forward(input)
        kind = input.device.type
        if torch.is_autocast_enabled(kind) and input.dtype != torch.float64:
            input = input.to(torch.get_autocast_dtype(kind))
            with torch.autocast(kind, enabled=False):
                return self._shaped(input)
        return self._shaped(input)

    def _shaped(self, features: Tensor) -> Tensor:
        out: Tensor = _IshFunction.apply(features, self.weight, self.bias, self.percentile, self.prune)
        return out

    def extra_repr(self) -> str:
        """Describe the layer."""
        return f"{super().extra_repr()}, percentile={self.percentile:g}, prune={self.prune}"


class Swapped:
    """Holds a network whose final layer learns by ISH, until `undo` or the end of a `with` block."""

    def __init__(self, model: nn.Module, inner: nn.Module, name: str, linear: nn.Linear, layer: IshLinear) -> None:
        self.model, self.inner, self.name, self.linear, self.layer = model, inner, name, linear, layer
        inner.set_submodule(name, layer)

    def undo(self) -> None:
        """Put the plain layer back; it shares its parameters with what was learned."""
        # Whoever moved or replaced the parameters meanwhile did so on the twin.
        self.linear.weight, self.linear.bias = self.layer.weight, self.layer.bias
        self.linear.train(self.layer.training)
        self.inner.set_submodule(self.name, self.linear)

    def __enter__(self) -> nn.Module:
        return self.model

    def __exit__(self, *error: object) -> None:
        self.undo()


def ish(model: nn.Module, percentile: float = 85.0, *, prune: bool = False, layer: str | None = None) -> Swapped:
    """Let a network's final linear layer learn by ISH, for a `with` block or until `undo`.

    The names in `state_dict` stay as they are, and so does what the network computes.

    Args:
        model: any classifier with a final linear layer.
        percentile: share of activations, in percent, left out of the sum of the largest.
        prune: also leave them out of the gradient.
        layer: name of the final layer, where it should not be searched.
    """
    inner, name, linear = final_linear(model, layer)
    return Swapped(model, inner, name, linear, IshLinear.sharing(linear, percentile, prune))


@method("ish")
@dataclass(eq=False, repr=False)
class Ish(Objective):
    """Fine-tune with the final layer's weight learning from activations scaled by exp(r)."""

    recipe = {"epochs": 10, "lr": 0.003, "weight_decay": 5e-6}

    percentile: float = 85.0
    prune: bool = False
    layer: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._swapped = ish(self.model, self.percentile, prune=self.prune, layer=self.layer)

    def finish(self) -> nn.Module:
        """Put the plain layer back."""
        self._swapped.undo()
        return self.model

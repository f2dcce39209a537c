"""Records the linear steps of one forward pass: their inputs, weights and outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from idness.core.errors import ModelError
from idness.networks.modules import copied, inference

MAPS = 16
"""Number of steps with more than one row per image that are kept if all are recorded, counted from the last."""


@dataclass(frozen=True, eq=False)
class Step:
    """One linear step of a forward pass: a layer, or a call of a function, at every place of an image.

    Args:
        layer: the layer's dotted name; empty if it is the whole network, `None` if the step is not a layer.
        function: the function that computes it, such as `linear()`.
        entered: its input, one row per image or per place of an image.
        weight: (C, D).
        bias: (C,), or `None`.
        output: its output.
        spatial: whether channels are the second dimension, as in a convolution, and not the last.
    """

    layer: str | None
    function: str
    entered: Tensor
    weight: Tensor
    bias: Tensor | None
    output: Tensor
    spatial: bool = False
    versions: tuple[int, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "versions", (_version(self.entered), _version(self.output)))

    @property
    def key(self) -> str:
        """The layer's name, or else the function's."""
        return self.function if self.layer is None else self.layer

    @property
    def features(self) -> Tensor:
        """The input, one row per image: the mean over all places, with which a linear step commutes."""
        if _version(self.entered) != self.versions[0]:
            raise ModelError(
                f"SplitModel: the network changes the input of {self.key!r} in place; copy it first with .clone()"
            )
        if self.spatial and prod(self.entered.shape[1:]) == self.weight.shape[1]:
            return self.entered.flatten(1)
        return _pooled(self.entered, self.spatial)

    @property
    def logits(self) -> Tensor:
        """The output in float32, one row per image; computed again if it was changed in place or has lower precision."""
        if self.kept and self.output.dtype in (torch.float32, torch.float64):
            return _pooled(self.output, self.spatial).float()
        bias = None if self.bias is None else self.bias.float()
        return nn.functional.linear(self.features.float(), self.weight.float(), bias)

    @property
    def kept(self) -> bool:
        """Whether the output has not been changed in place since."""
        return _version(self.output) == self.versions[1]

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of images and of outputs."""
        return len(self.output), self.weight.shape[0]

    @staticmethod
    def of_layer(name: str, module: nn.Module) -> Step:
        """Return a layer's weights as a step without input; the layer is not changed."""
        # In training mode, reading the weight of a layer with spectral norm would update its buffers.
        with inference(module):
            if "weight" not in module._parameters and module._forward_pre_hooks:
                module = copied(module)  # its weight is computed before each call
                module(_parameters(module)[0][:1] * 0)
            weight, bias = _parameters(module)
        return Step(name, "", weight.flatten(1)[:0], weight.flatten(1), bias, weight.flatten(1)[:0])


@contextmanager
def recorded(model: nn.Module, wanted: Mapping[str, int] | None = None) -> Iterator[list[Step]]:
    """Collect a network's linear steps while the block runs it; other threads may run the same network meanwhile.

    Args:
        model: the network.
        wanted: the layers and functions to record, and how many of the last calls of each; all if `None`.
    """
    steps: list[Step] = []
    mine = get_ident()
    functions = wanted is None or any(is_function(key) for key in wanted)

    def hook(name: str) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
        def note(module: nn.Module, entered: tuple[Any, ...], output: Any) -> None:
            # All threads share the layer and its hooks.
            if get_ident() == mine and entered and isinstance(output, Tensor):
                _note_layer(steps, name, module, entered[0], output, functions=functions)

        return note

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if (wanted is None or name in wanted) and is_linear(module):
                stack.callback(module.register_forward_hook(hook(name)).remove)
        if functions:
            stack.enter_context(_Functions(steps, wanted))
        yield steps


def is_function(key: str) -> bool:
    """Whether this names a function and not a layer."""
    return key.endswith("()")


def is_linear(module: nn.Module) -> bool:
    """Whether a module is a linear layer, or a convolution that sees one place at a time or all of them."""
    if isinstance(module, nn.Conv2d):
        return module.groups == 1 and tuple(module.stride) == (1, 1) and _unpadded(module.padding)
    return isinstance(module, nn.Linear)


def _parameters(module: nn.Module) -> tuple[Tensor, Tensor | None]:
    weight, bias = module.weight, module.bias
    assert isinstance(weight, Tensor)
    assert bias is None or isinstance(bias, Tensor)
    return weight, bias


def _note_layer(
    steps: list[Step], name: str, module: nn.Module, entered: Tensor, output: Tensor, *, functions: bool
) -> None:
    """Record a layer's call; if functions are recorded too, name the function's step after the layer."""
    count = len(steps)
    weight, bias = _parameters(module)
    del steps[count:]  # the functions that compute a parametrized weight
    if not functions:
        made = _step(name, "conv2d()" if weight.ndim == 4 else "linear()", entered, weight, bias, output)
        steps += [] if made is None else [made]
        return
    last = steps[-1] if steps else None
    # A layer that normalises its weight, or changes what it computes, is more than its weight and bias.
    if last is not None and last.output is output and last.entered is entered and last.layer is None:
        flat = weight.flatten(1)
        if _same(flat, last.weight) and (last.bias is bias or _same(bias, last.bias)):
            steps[-1] = replace(last, layer=name, weight=flat)


def _version(tensor: Tensor) -> int:
    """Return the number of changes in place; tensors of torch.inference_mode() count none and cannot be changed here."""
    return 0 if tensor.is_inference() else tensor._version


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None or one.shape != other.shape:
        return False
    return one.data_ptr() == other.data_ptr() or torch.equal(one, other)


def _step(
    layer: str | None, function: str, entered: Tensor, weight: Tensor, bias: Tensor | None, output: Tensor
) -> Step | None:
    if weight.ndim == 2:
        return Step(layer, function, entered, weight, bias, output)
    sees_one, sees_all = tuple(weight.shape[2:]) == (1, 1), weight.shape[2:] == entered.shape[2:]
    if weight.ndim != 4 or entered.ndim != 4 or not (sees_one or sees_all):
        return None
    return Step(layer, function, entered, weight.flatten(1), bias, output, spatial=True)


def _pooled(values: Tensor, spatial: bool) -> Tensor:
    if values.ndim <= 2:
        return values
    return values.flatten(2).mean(dim=2) if spatial else values.flatten(1, -2).mean(dim=1)


def _unpadded(padding: Any) -> bool:
    return padding == "valid" or (not isinstance(padding, str) and all(side == 0 for side in padding))


class _Functions(TorchFunctionMode):
    """Records calls of the functions that compute linear steps; torch keeps such modes apart by thread."""

    def __init__(self, steps: list[Step], wanted: Mapping[str, int] | None) -> None:
        super().__init__()
        self.steps, self.wanted = steps, wanted

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        output = func(*args, **options)
        reader = _READERS.get(func)
        made = reader(output, *args, **options) if reader and isinstance(output, Tensor) and output.ndim > 1 else None
        if made is not None and (self.wanted is None or made.function in self.wanted):
            self.steps.append(made)
            self._forget(made.function)
        return output

    def _forget(self, function: str) -> None:
        """Drop the oldest step that is no longer needed: steps hold the activations of a whole batch."""
        most = MAPS if self.wanted is None else self.wanted[function]
        places = [
            place
            for place, step in enumerate(self.steps)
            if (step.output.ndim > 2 if self.wanted is None else step.function == function)
        ]
        if len(places) > most:
            del self.steps[places[0]]


def _linear(output: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Step | None:
    return _step(None, "linear()", input, weight, bias, output) if weight.ndim == 2 else None


def _conv2d(
    output: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Step | None:
    listed = padding if isinstance(padding, str | tuple | list) else (padding,)
    plain = groups == 1 and stride in (1, (1, 1), [1, 1]) and _unpadded(listed)
    return _step(None, "conv2d()", input, weight, bias, output) if plain else None


def _matmul(output: Tensor, input: Tensor, other: Any = None, *, mat2: Any = None) -> Step | None:
    other = mat2 if other is None else other
    if not isinstance(other, Tensor) or other.ndim != 2 or input.ndim < 2:
        return None
    return _step(None, "matmul()", input, other.t(), None, output)


def _addmm(output: Tensor, input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Step | None:
    return _step(None, "addmm()", mat1, alpha * mat2.t(), beta * input, output) if input.ndim == 1 else None


_READERS: dict[Any, Callable[..., Step | None]] = {
    nn.functional.linear: _linear,
    torch.conv2d: _conv2d,
    **dict.fromkeys((torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm), _matmul),
    **dict.fromkeys((torch.addmm, Tensor.addmm), _addmm),
}

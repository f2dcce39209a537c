"""What is known of a head by its layers' names and weights, without running the network."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from idness.core.errors import ModelError
from idness.networks.recovery import Part
from idness.networks.watching import Step, is_function, is_layer


def check_named(model: nn.Module, layer: str) -> None:
    """Refuse names of layers that cannot be a head."""
    named = [(name, module) for name, module in model.named_modules() if is_layer(module)]
    # Of convolutions that see more than one place, the last one alone may be a head, if no linear layer follows it.
    names = [
        name
        for place, (name, module) in enumerate(named, 1)
        if isinstance(module, nn.Linear) or tuple(module.kernel_size) == (1, 1) or place == len(named)
    ]
    for part in parts_of(layer):
        if part.key not in names and not is_function(part.key):
            raise ModelError(
                f"SplitModel: layer must name an nn.Linear of the model, got {layer!r}; it has {', '.join(names[-5:]) or 'none'}"
            )


def parts_of(layer: str) -> tuple[Part, ...]:
    """Read the names of layers whose logits are added up."""
    return tuple(Part.parse(text) for text in layer.split("+"))


def shape_of(steps: Sequence[Step]) -> tuple[int, int]:
    """Give the numbers of outputs and features of steps side by side."""
    return steps[0].weight.shape[0], sum(step.weight.shape[1] for step in steps)


def at_rest(name: str, module: nn.Module) -> Step:
    """Show a layer's weights as a step that nothing has entered."""
    weight, bias = module.weight, module.bias
    assert isinstance(weight, Tensor)
    assert bias is None or isinstance(bias, Tensor)
    flat = weight.flatten(1)
    return Step(name, "", flat[:0], flat, bias, flat[:0])


def two_of(yes: Tensor, dim: int) -> Tensor:
    """Make two classes of one output: the softmax of (-z / 2, z / 2) is the sigmoid of z, and neither class is preferred."""
    return torch.cat([-0.5 * yes, 0.5 * yes], dim=dim)

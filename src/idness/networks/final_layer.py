"""Finds a network's final linear layer, puts another in its place, and reads what enters it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from idness.core.errors import ModelError
from idness.networks.split import SplitModel


def final_linear(
    model: nn.Module, layer: str | None = None, *, example: Tensor | None = None
) -> tuple[nn.Module, str, nn.Linear]:
    """Find the linear layer whose output is the network's, or the one of this name; a batch of its images helps the search.

    Returns the network without its wrappers, the layer's name in it, and the layer.
    """
    split = SplitModel(model, layer, example=example)
    if not split.layer:
        raise ModelError("the network is itself one linear layer; wrap it in nn.Sequential")
    return split.model, split.layer, split.linear


def replace_module(model: nn.Module, name: str, new: nn.Module) -> None:
    """Put another module in the place of a named one."""
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, new)


@contextmanager
def entering(layer: nn.Module) -> Iterator[list[Tensor]]:
    """Collect what enters a layer while the block runs."""
    seen: list[Tensor] = []

    def keep(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        seen.append(args[0])

    handle = layer.register_forward_pre_hook(keep)
    try:
        yield seen
    finally:
        handle.remove()

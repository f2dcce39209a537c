"""Helpers for any `nn.Module`: modes, copies, calls, memory layout and hashes of weights."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn


def unwrap(model: nn.Module) -> nn.Module:
    """Return the network inside DataParallel, DistributedDataParallel or torch.compile."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def module_fingerprint(model: nn.Module) -> str:
    """Return the SHA-256 of a network's parameters and buffers: names, shapes, types and bytes."""
    digest = hashlib.sha256()
    for name, value in sorted(unwrap(model).state_dict().items()):
        if not isinstance(value, Tensor):  # such as the packed weights of int8 layers
            digest.update(f"{name}:{value};".encode())
            continue
        tensor = value.detach().cpu().contiguous()
        digest.update(f"{name}:{tuple(tensor.shape)}:{tensor.dtype};".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def copied(model: nn.Module) -> nn.Module:
    """Return a copy of a network that shares its parameters; return the network itself if it cannot be copied.

    Buffers and attributes are copied because some networks store the size of their first input and accept no other afterwards.
    """
    values = [value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor)]
    shared = [*model.parameters(), *(value for value in values if not value.is_leaf)]
    try:
        return copy.deepcopy(model, {id(value): value for value in shared})
    except Exception:  # a module may contain objects that cannot be copied, such as locks or open files
        return model


def call(model: nn.Module, images: Tensor) -> Any:
    """Run a network; a network compiled in place runs uncompiled, since compiled code ignores hooks."""
    if getattr(model, "_compiled_call_impl", None) is None:
        return model(images)
    return model._call_impl(images)  # type: ignore[no-untyped-call]


def as_input(model: nn.Module, images: Tensor) -> Tensor:
    """Return images on the network's device and in its precision."""
    own = next((value for value in model.parameters() if value.is_floating_point()), None)
    if own is None:
        return images
    return images.to(own.device, own.dtype if images.is_floating_point() else None)


def best_layout(model: nn.Module, images: Tensor) -> torch.memory_format:
    """Move a network's weights to the fastest memory format that it supports, and return the format.

    Channels-last makes convolutions about a third faster on a CPU, but fails in a network that flattens with `.view`.
    """
    try:
        model.to(memory_format=torch.channels_last)
        with inference(model):
            call(model, images.to(memory_format=torch.channels_last))
    except RuntimeError:
        model.to(memory_format=torch.contiguous_format)
        return torch.contiguous_format
    return torch.channels_last


@contextmanager
def entering(layer: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the inputs of a layer while the block runs."""
    seen: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    try:
        yield seen
    finally:
        handle.remove()


@contextmanager
def inference(model: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode without gradients, and restore every module's mode afterwards."""
    # Only the attribute is set: a module's own `eval()` may do more, such as merging weights, which would have to be undone.
    with _switched_off("training", model.modules()), torch.inference_mode(False), torch.no_grad():
        yield


@contextmanager
def differentiable(model: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode with gradients for the input but not for the parameters."""
    with inference(model), _switched_off("requires_grad", model.parameters()), torch.enable_grad():
        yield


_LOCK = Lock()
_OFF: dict[tuple[int, str], tuple[Any, bool, int]] = {}
"""Objects with an attribute that is switched off: whether it was on before, and how many blocks need it off."""


@contextmanager
def _switched_off(attribute: str, objects: Iterable[Any]) -> Iterator[None]:
    """Switch an attribute off until the last of possibly several threads leaves its block."""
    listed = [(each, (id(each), attribute)) for each in objects]
    with _LOCK:
        for each, key in listed:
            _, before, blocks = _OFF.get(key, (each, getattr(each, attribute), 0))
            _OFF[key] = each, before, blocks + 1
            if getattr(each, attribute):
                setattr(each, attribute, False)
    try:
        yield
    finally:
        with _LOCK:
            for each, key in listed:
                _, before, blocks = _OFF.pop(key)
                if blocks > 1:
                    _OFF[key] = each, before, blocks - 1
                elif before:
                    setattr(each, attribute, True)

"""Which network it is: inside its wrappers, and by the hash of its weights."""

from __future__ import annotations

import hashlib

import torch
from torch import nn


def unwrap(model: nn.Module) -> nn.Module:
    """Look through DataParallel, DistributedDataParallel and torch.compile."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def fingerprint(model: nn.Module) -> str:
    """Hash a network's parameters and buffers: names, shapes, types and bytes."""
    digest = hashlib.sha256()
    for name, value in sorted(unwrap(model).state_dict().items()):
        tensor = value.detach().cpu().contiguous()
        digest.update(f"{name}:{tuple(tensor.shape)}:{tensor.dtype};".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()

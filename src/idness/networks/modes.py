"""Modes in which a network runs for a while, and after which it is as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def inference(model: nn.Module) -> Iterator[None]:
    """Switch to evaluation without gradients, and put every module's mode back afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.inference_mode(False), torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def differentiable(model: nn.Module) -> Iterator[None]:
    """Switch to evaluation with gradients for the input alone: parameters are constants, and get none."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        with inference(model), torch.enable_grad():
            for parameter in trained:
                parameter.requires_grad_(False)
            yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)

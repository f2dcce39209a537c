"""Memory that a network's layers take and give back with every batch."""

from __future__ import annotations

import ctypes
import os
from functools import cache

import torch
from torch import Tensor, nn

from idness.networks.modes import inference
from idness.networks.probing import call

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""What glibc calls these settings."""
MOST = 512 << 20
"""How many bytes the layers of one batch may take at most."""
HELD = 3
"""How many times what enters and leaves the widest layer is held at once: branches that are added or joined wait for each other."""


@cache
def keep_memory() -> bool:
    """Let this process keep the memory that it frees, and say whether the system's library can.

    glibc gives every large block back to the kernel, which clears it page by page when the next layer asks for it: for
    MobileNetV2 that took longer than the network itself.
    """
    try:
        library = ctypes.CDLL(None)
        return bool(library.mallopt(M_MMAP_MAX, 0)) and bool(library.mallopt(M_TRIM_THRESHOLD, 2**31 - 1))
    except (OSError, AttributeError, TypeError):  # other systems have another library, or none of this name
        return False


def bytes_per_image(model: nn.Module, images: Tensor) -> int:
    """Measure how many bytes an image needs on its way through a network: a few times what its widest layer takes and gives."""
    largest = [images[:1].nbytes]

    def note(_: nn.Module, entered: tuple[object, ...], output: object) -> None:
        largest.append(sum(value.nbytes for value in (*entered, output) if isinstance(value, Tensor)))

    hooks = [module.register_forward_hook(note) for module in model.modules() if not list(module.children())]
    try:
        with inference(model):
            call(model, images[:1])
    finally:
        for hook in hooks:
            hook.remove()
    return HELD * max(largest)


def largest_batch(model: nn.Module, images: Tensor) -> int:
    """Say how many images fit a network at once: in half a gigabyte, and in an eighth of what the machine has free."""
    return max(1, min(MOST, _free() // 8) // bytes_per_image(model, images))


def _free() -> int:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # not every system says
        return 8 * MOST


def synchronize(device: torch.device) -> None:
    """Wait until a device has done what it was given: a GPU answers before it is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)

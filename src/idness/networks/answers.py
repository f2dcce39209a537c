"""What a network returns: where its logits may be, and whether two outputs are the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from idness.networks.watching import Step

TOLERANCES = {torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""How far what was recovered may be from the network's output, relative to the largest output of the image; by its precision."""
TOLERANCE = 1e-5


def answers(output: Any, count: int) -> dict[str, Tensor]:
    """Find what may be logits in what a network returns: tensors with one row per image, by where they are."""
    found = {name: value for name, value in _tensors(output, "") if value.is_floating_point() and value.numel()}
    fit = {
        name: value for name, value in found.items() if value.ndim and len(value) == count and as_rows(value).ndim == 2
    }
    return dict(sorted(fit.items(), key=lambda item: item[0] != "logits"))


def as_rows(output: Tensor) -> Tensor:
    """Give one row per image: of single numbers, and of maps of one place, too."""
    if output.ndim == 1:
        return output.unsqueeze(1)
    return output.flatten(1) if output.ndim > 2 and output[0, 0].numel() == 1 else output


def allowed(wanted: Tensor, *steps: Step) -> float:
    """Say how far what is recovered from steps may be from the output, by the lowest precision in which they were computed."""
    return max(TOLERANCES.get(value.dtype, TOLERANCE) for value in (wanted, *(step.output for step in steps)))


def close(found: Tensor, wanted: Tensor, tolerance: float = TOLERANCE) -> bool:
    """Tell whether two outputs are the same up to rounding, image by image; images that give NaN or Inf tell nothing."""
    if found.shape != wanted.shape:
        return False
    found, wanted = found.detach().double(), wanted.detach().double()
    counted = torch.isfinite(found).all(dim=1) & torch.isfinite(wanted).all(dim=1)
    size = wanted.abs().amax(dim=1)
    return bool((((found - wanted).abs().amax(dim=1) <= tolerance * size) | ~counted).all())


def _tensors(output: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(output, Tensor):
        yield path, output
    elif isinstance(output, Mapping):
        for key, value in output.items():
            yield from _tensors(value, f"{path}.{key}" if path else str(key))
    elif isinstance(output, tuple) and hasattr(output, "_fields"):
        for key, value in zip(output._fields, output, strict=True):
            yield from _tensors(value, f"{path}.{key}" if path else str(key))
    elif isinstance(output, tuple | list):
        for place, value in enumerate(output):
            yield from _tensors(value, f"{path}[{place}]")
    elif is_dataclass(output) and not isinstance(output, type):
        yield from _tensors({field.name: getattr(output, field.name) for field in fields(output)}, path)
    elif isinstance(getattr(output, "logits", None), Tensor):
        yield "logits", output.logits

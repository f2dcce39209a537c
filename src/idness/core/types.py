"""The data that flows between a network and its detectors: activations, and the head that computes logits from features."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from idness.core.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    ArrayLike = Tensor | NDArray[np.generic]


DIGEST_GRID = 2.0**14
"""Steps per unit at which digests are rounded: coarser than float32 rounding, finer than the difference between two images."""
DIGEST_WIDTH = 4
"""Features below which rounded numbers of different images coincide too often."""


@dataclass(frozen=True, eq=False)
class Activations:
    """The features (N, D) and logits (N, C) of N images and, if known, their labels (N,).

    Tensors and NumPy arrays are accepted; features and logits become float32, since scale factors overflow float16.

    Args:
        features: the input of the final linear layer.
        logits: its output.
        labels: the class of each image.
        edited: the activations of the same images after a method changed them.
        index: the position of each image in its data set (N,).
        hashes: a hash of each image's pixels (N, bytes).
        pre_relu: the input of the final ReLU, pooled as the features are (N, D).
        rectifier: a description of that ReLU and pooling.
        skipped: the position of each image of the data set without activations, and the reason.

    Example:
        >>> acts = Activations(torch.rand(8, 16), torch.rand(8, 3))
        >>> len(acts), len(acts[:5])
        (8, 5)
    """

    features: Tensor
    logits: Tensor
    labels: Tensor | None = None
    edited: Activations | None = None
    index: Tensor | None = None
    hashes: Tensor | None = None
    pre_relu: Tensor | None = None
    rectifier: str = ""
    skipped: Sequence[tuple[int, str]] = ()

    def __post_init__(self) -> None:
        features, logits = _matrix("features", self.features), _matrix("logits", self.logits)
        if len(features) != len(logits):
            raise InputError(
                f"Activations: features and logits must have one row per image, got {len(features)} and {len(logits)}"
            )
        object.__setattr__(self, "features", features)
        object.__setattr__(self, "logits", logits)
        if self.labels is not None:
            object.__setattr__(self, "labels", _labels(self.labels, len(features)))
        if self.edited is not None and len(self.edited) != len(features):
            raise InputError(
                f"Activations: edited must have one row per image ({len(features)}), got {len(self.edited)}; are they of the same images?"
            )

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, rows: slice | Tensor) -> Activations:
        """Select rows by slice, index tensor or mask."""
        return self._map(lambda part: part[rows])

    @property
    def finite(self) -> Tensor:
        """Which rows hold no NaN and no Inf, as a mask (N,)."""
        own = torch.isfinite(self.features).all(dim=1) & torch.isfinite(self.logits).all(dim=1)
        return own if self.edited is None else own & self.edited.finite

    @cached_property
    def digests(self) -> Tensor:
        """One number per row (N,) that stays the same for the same image, but for rounding in the network, and differs for others.

        It is a hash of four random projections of the features and of their norm. Zero, which counts as unknown, if there are no
        features to tell images apart by.
        """
        random = torch.Generator().manual_seed(0)
        directions = torch.randn(self.features.shape[1], 4, generator=random, dtype=torch.float32)
        features = self.features.cpu()
        norm = features.norm(dim=1, keepdim=True).clamp(min=1e-30)
        cells = (torch.cat([features @ directions / norm, norm.log()], dim=1).nan_to_num() * DIGEST_GRID).round().long()
        # Any large odd numbers will do; sums wrap around.
        mixed = (cells * torch.tensor([0x9E3779B97F4A7C15 >> shift | 1 for shift in range(1, 6)])).sum(dim=1)
        usable = (features != 0).any(dim=1) & (self.features.shape[1] >= DIGEST_WIDTH)
        return torch.where(usable, mixed, 0)

    def to(self, device: torch.device | str) -> Activations:
        """Return a copy on a device."""
        return self._map(lambda part: part.to(device))

    def batches(self, size: int) -> Iterator[Activations]:
        """Yield consecutive parts of at most `size` rows; they share memory with this one."""
        for start in range(0, len(self), size):
            yield self[start : start + size]

    @staticmethod
    def concat(parts: Iterable[Activations]) -> Activations:
        """Join parts row after row; an optional field is kept if every part has it."""
        listed = list(parts)
        if not listed:
            raise InputError("Activations.concat: needs at least one part, got none; is the data set empty?")
        if len(listed) == 1:
            return listed[0]
        joined: dict[str, Any] = {"rectifier": listed[0].rectifier}
        for name in _ROWS:
            found = [value for part in listed if (value := getattr(part, name)) is not None]
            if len(found) == len(listed):
                joined[name] = Activations.concat(found) if name == "edited" else torch.cat(found)
        return Activations(**joined, skipped=[entry for part in listed for entry in part.skipped])

    def _map(self, change: Callable[[Any], Any]) -> Activations:
        """Apply a function to every field that has one row per image."""
        rows = {name: change(value) for name in _ROWS if (value := getattr(self, name)) is not None}
        return Activations(**rows, rectifier=self.rectifier, skipped=self.skipped)


_ROWS = ("features", "logits", "labels", "edited", "index", "hashes", "pre_relu")
"""The fields of `Activations` that have one row per image."""


class InputEditor(Protocol):
    """Changes images along a gradient of the network: the detectors that look at an image twice do."""

    def perturb(self, network: Callable[[Tensor], tuple[Tensor, Tensor]], images: Tensor) -> Tensor:
        """Give the changed images; the network gives features and logits through which gradients flow."""
        ...

    def edit_key(self) -> str:
        """Identify the change: the same for editors that change images alike."""
        ...


@dataclass(frozen=True, eq=False)
class Head:
    """Makes logits of features, as the final linear layer does: weight (C, D), and bias (C,), zero where the layer has none.

    Where `multi_label` is set, each class is a label that an image has or has not: it may have several, or none.
    """

    weight: Tensor
    bias: Tensor | None = None
    multi_label: bool = False

    def __post_init__(self) -> None:
        weight = _matrix("weight", self.weight, owner="Head")
        bias = weight.new_zeros(len(weight)) if self.bias is None else torch.as_tensor(self.bias).detach().float()
        if bias.shape != weight.shape[:1]:
            raise InputError(f"Head: bias must have one value per class ({len(weight)}), got shape {tuple(bias.shape)}")
        for name, value in (("weight", weight), ("bias", bias)):
            # A sum is the cheapest pass that NaN and Inf survive; traced values have none to look at.
            if not torch.compiler.is_exporting() and not math.isfinite(value.sum().item()):
                raise InputError(
                    f"Head: {name} must be finite, got NaN or Inf; are these the weights of a diverged network?"
                )
        object.__setattr__(self, "weight", weight)
        object.__setattr__(self, "bias", bias)

    def __call__(self, features: Tensor) -> Tensor:
        """Compute the logits of features."""
        return torch.nn.functional.linear(features, self.weight, self.bias)

    def to(self, device: torch.device | str) -> Head:
        """Give the same on a device."""
        return replace(self, weight=self.weight.to(device), bias=self.offset.to(device))

    @cached_property
    def columns(self) -> Tensor:
        """The weight turned over (D, C), so that what belongs to a feature lies together."""
        return self.weight.T.contiguous()

    @property
    def offset(self) -> Tensor:
        """The bias, as a tensor in any case."""
        assert self.bias is not None  # __post_init__ filled it
        return self.bias

    @property
    def classes(self) -> int:
        """The number of classes."""
        return self.weight.shape[0]

    @property
    def width(self) -> int:
        """The number of features."""
        return self.weight.shape[1]


def _matrix(name: str, value: ArrayLike, owner: str = "Activations") -> Tensor:
    tensor = torch.as_tensor(value).detach()
    if not tensor.is_floating_point():
        raise InputError(
            f"{owner}: {name} must be floating point, got {str(tensor.dtype).removeprefix('torch.')}; convert with .float()"
        )
    if tensor.ndim != 2 or tensor.shape[1] == 0:
        raise InputError(f"{owner}: {name} must be a matrix with one row per image, got shape {tuple(tensor.shape)}")
    return tensor.float()


def _labels(value: ArrayLike, count: int) -> Tensor:
    labels = torch.as_tensor(value).detach()
    if labels.is_floating_point() or labels.dtype == torch.bool or labels.shape != (count,):
        dtype = str(labels.dtype).removeprefix("torch.")
        raise InputError(f"Activations: labels must be {count} integers, got {dtype} of shape {tuple(labels.shape)}")
    return labels.long()

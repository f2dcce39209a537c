"""The data that flows between a network and its detectors: activations, the head that computes logits, and checks of both."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from idness.core.errors import IdnessWarning, InputError
from idness.core.options import owner_name

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    ArrayLike = Tensor | NDArray[np.generic]


SUITS_SIGNED = "gen, rmds, knn"
"""Methods that allow negative features, suggested in warnings."""
DIGEST_GRID = 2.0**14
"""Steps per unit at which digests are rounded: coarser than float32 rounding, finer than the difference between two images."""
DIGEST_WIDTH = 4
"""Smallest number of features for digests: with fewer, the rounded features of different images coincide too often."""


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
        pre_relu: the input of the final ReLU, pooled in the same way as the features (N, D).
        rectifier: a description of that ReLU and pooling.
        skipped: the position of each image of the data set that has no activations, with the reason.

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
        for name, rows in (("logits", logits), ("edited", self.edited)):
            if rows is not None and len(rows) != len(features):
                raise InputError(f"Activations: {name} must have {len(features)} rows, like features, got {len(rows)}")
        object.__setattr__(self, "features", features)
        object.__setattr__(self, "logits", logits)
        if self.labels is not None:
            labels = torch.as_tensor(self.labels).detach()
            if labels.is_floating_point() or labels.dtype == torch.bool or labels.shape != (len(features),):
                given = f"{labels.dtype} of shape {tuple(labels.shape)}"
                raise InputError(f"Activations: labels must be {len(features)} integers, got {given}")
            object.__setattr__(self, "labels", labels.long())

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, rows: slice | Tensor) -> Activations:
        """Return the rows selected by a slice, index tensor or mask."""
        return self._map(lambda part: part[rows])

    @property
    def finite(self) -> Tensor:
        """A mask (N,) of the rows without NaN and Inf."""
        own = torch.isfinite(self.features).all(dim=1) & torch.isfinite(self.logits).all(dim=1)
        return own if self.edited is None else own & self.edited.finite

    @cached_property
    def digests(self) -> Tensor:
        """One hash per row (N,), equal for the same image up to rounding in the network; zero if features cannot distinguish images."""
        random = torch.Generator().manual_seed(0)
        directions = torch.randn(self.features.shape[1], 4, generator=random, dtype=torch.float32)
        features = self.features.cpu()
        norm = features.norm(dim=1, keepdim=True).clamp(min=1e-30)
        # Four random projections and the norm.
        cells = (torch.cat([features @ directions / norm, norm.log()], dim=1).nan_to_num() * DIGEST_GRID).round().long()
        # Any large odd factors work; sums wrap around.
        mixed = (cells * torch.tensor([0x9E3779B97F4A7C15 >> shift | 1 for shift in range(1, 6)])).sum(dim=1)
        usable = (features != 0).any(dim=1) & (self.features.shape[1] >= DIGEST_WIDTH)
        return torch.where(usable, mixed, 0)

    def to(self, device: torch.device | str) -> Activations:
        """Return a copy on a device."""
        return self._map(lambda part: part.to(device))

    def batches(self, size: int) -> Iterator[Activations]:
        """Yield consecutive parts of at most `size` rows, which share memory with this object."""
        for start in range(0, len(self), size):
            yield self[start : start + size]

    @staticmethod
    def concat(parts: Iterable[Activations]) -> Activations:
        """Concatenate parts along the rows; an optional field is kept if every part has it."""
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
        """Return a copy with a function applied to every field that has one row per image."""
        rows = {name: change(value) for name in _ROWS if (value := getattr(self, name)) is not None}
        return Activations(**rows, rectifier=self.rectifier, skipped=self.skipped)


_ROWS = ("features", "logits", "labels", "edited", "index", "hashes", "pre_relu")
"""The fields of `Activations` that have one row per image."""


class InputEditor(Protocol):
    """A detector that edits images along a gradient of the network for a second pass."""

    def perturb(self, network: Callable[[Tensor], tuple[Tensor, Tensor]], images: Tensor) -> Tensor:
        """Return the edited images; `network` returns differentiable features and logits."""

    def edit_key(self) -> str:
        """Return a key that is equal for editors that edit images in the same way."""


@dataclass(frozen=True, eq=False)
class Head:
    """The final linear layer, which computes logits (N, C) from features (N, D).

    Args:
        weight: (C, D).
        bias: (C,); zero if not given.
        multi_label: whether each class is an independent label that an image may or may not have.

    Example:
        >>> head = Head(torch.eye(3))
        >>> head(torch.tensor([[1.0, 2.0, 3.0]])).tolist()
        [[1.0, 2.0, 3.0]]
    """

    weight: Tensor
    bias: Tensor | None = None
    multi_label: bool = False

    def __post_init__(self) -> None:
        weight = _matrix("weight", self.weight, owner="Head")
        bias = weight.new_zeros(len(weight)) if self.bias is None else torch.as_tensor(self.bias).detach().float()
        if bias.shape != weight.shape[:1]:
            raise InputError(f"Head: bias must have one value per class ({len(weight)}), got shape {tuple(bias.shape)}")
        # NaN and Inf survive a sum, which is the cheapest check; traced tensors have no values.
        if not torch.compiler.is_exporting() and not math.isfinite((weight.sum() + bias.sum()).item()):
            raise InputError("Head: weight and bias must be finite, got NaN or Inf; did the training diverge?")
        object.__setattr__(self, "weight", weight)
        object.__setattr__(self, "bias", bias)

    def __call__(self, features: Tensor) -> Tensor:
        """Compute the logits of features."""
        return torch.nn.functional.linear(features, self.weight, self.bias)

    def to(self, device: torch.device | str) -> Head:
        """Return a copy on a device."""
        return replace(self, weight=self.weight.to(device), bias=self.offset.to(device))

    @property
    def offset(self) -> Tensor:
        """The bias (C,); zeros if the layer has none."""
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


def check_acts(owner: object, what: str, acts: Activations, head: Head) -> None:
    """Raise unless activations are finite, not empty, and as wide as the head."""
    where = f"{owner_name(owner)}: {what}"
    if not isinstance(acts, Activations):
        raise InputError(f"{where} must be Activations(features, logits), got {type(acts).__name__}")
    if len(acts) == 0:
        raise InputError(f"{where} must contain at least one image, got none")
    for name, value, width in (("features", acts.features, head.width), ("logits", acts.logits, head.classes)):
        if value.shape[1] != width:
            raise InputError(f"{where} must have {width} {name} per image, like the head, got {value.shape[1]}")
        # NaN and Inf survive a sum, which is the cheapest check; rows are searched only if it fails.
        if not math.isfinite(value.sum().item()) and len(bad := (~torch.isfinite(value).all(dim=1)).nonzero()):
            rows = f"{len(bad)} of {len(value)} images (first at row {int(bad[0])})"
            raise InputError(f"{where} must be finite, got NaN or Inf in the {name} of {rows}; check the images")


def check_edited(owner: object, what: str, acts: Activations, head: Head) -> None:
    """Raise unless the activations of the edited images exist, are finite and as wide as the head."""
    if acts.edited is None:
        why = "must include those of the edited images, got none; score images with a Guard or idness bench"
        raise InputError(f"{owner_name(owner)}: {what} {why}")
    check_acts(owner, f"{what} of the edited images", acts.edited, head)


def check_labels(owner: object, what: str, acts: Activations, classes: int) -> None:
    """Raise unless there are labels and all are valid class indices of the head."""
    where = f"{owner_name(owner)}: {what}"
    if acts.labels is None:
        raise InputError(f"{where} must have labels, got none; pass Activations(features, logits, labels)")
    low, high = int(acts.labels.min()), int(acts.labels.max())
    if low < 0 or high >= classes:
        raise InputError(f"{where} labels must be in [0, {classes - 1}], got {low} to {high}")


def check_labelling(owner: object, head: Head, takes_labels: bool) -> None:
    """Raise if a method for single-label networks is used with a multi-label network."""
    if head.multi_label and not takes_labels:
        why = "requires one class per image, but the network is multi-label"
        raise InputError(f"{owner_name(owner)}: {why}; use ebo, mls, msp, react, scale or knn")


def check_match(owner: object, what: str, acts: Activations, head: Head) -> None:
    """Raise unless the head reproduces the logits from the features, checked on a few rows."""
    some = acts[:4].to(head.weight.device)
    error = float((head(some.features) - some.logits).abs().max())
    # Allows for networks that ran in bfloat16; a wrong head is far off.
    if error > 0.05 * (1.0 + float(some.logits.abs().max())):
        why = f"logits must match the head's output for these features, got a difference of {error:.3g}"
        raise InputError(f"{owner_name(owner)}: {what} {why}; do they come from another network?")


def is_signed(acts: Activations) -> bool:
    """Whether any feature is negative beyond rounding errors."""
    return len(acts) > 0 and float(acts.features.min()) < -1e-6 * float(acts.features.abs().max())


def warn_signed(owner: object, acts: Activations) -> None:
    """Warn if features that should be non-negative are not."""
    if is_signed(acts):
        found = f"requires non-negative features (post-ReLU), got values down to {float(acts.features.min()):.3g}"
        advice = f"its scores are unreliable here; use {SUITS_SIGNED} instead"
        warnings.warn(f"{owner_name(owner)}: {found}, so {advice}", IdnessWarning, stacklevel=4)


def _matrix(name: str, value: ArrayLike, owner: str = "Activations") -> Tensor:
    tensor = torch.as_tensor(value).detach()
    if not tensor.is_floating_point():
        raise InputError(f"{owner}: {name} must be floating point, got {tensor.dtype}; convert with .float()")
    if tensor.ndim != 2 or tensor.shape[1] == 0:
        raise InputError(f"{owner}: {name} must be a matrix with one row per image, got shape {tuple(tensor.shape)}")
    return tensor.float()

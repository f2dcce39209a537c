"""The range and statistics of the network's input at calibration: input of another kind is rejected whatever its score."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from idness.core.errors import IdnessWarning
from idness.data import Preprocessing
from idness.networks.split import unpack

KNOWN, SEEN = 0.5, 1.0
"""Fraction of its width by which the range is widened: for overshoots of resizing if the preprocessing is known, else for unseen values."""
FAR = 2.0
"""Standard deviations between images by which the mean of a batch must differ to be reported."""
SEVERAL = 8
"""Smallest batch whose statistics are compared."""


@dataclass(frozen=True)
class InputRange:
    """The range of the network's input values, and the distribution of its images' means and contrasts.

    Args:
        low: the lowest allowed value.
        high: the highest allowed value.
        brightness: mean and standard deviation, over images, of the mean of an image's values; `None` if no image was seen.
        contrast: the same for the standard deviation of an image's values.
    """

    low: float
    high: float
    brightness: tuple[float, float] | None = None
    contrast: tuple[float, float] | None = None

    def contains(self, images: Tensor) -> Tensor:
        """Return for each image whether all its values are in the range."""
        flat = images.flatten(1).float()
        return (flat.amin(dim=1) >= self.low) & (flat.amax(dim=1) <= self.high)

    def rejected(self, images: Tensor) -> dict[int, str]:
        """Return the reason for each row of images outside the range; warn if the statistics of the others are suspicious."""
        inside = self.contains(images)
        if bool(inside.all()) and (doubt := self.suspicion(images)):
            warnings.warn(f"Guard: {doubt}", IdnessWarning, stacklevel=3)
        reasons = {}
        for row in (~inside).nonzero().flatten().tolist():
            low, high = map(float, images[row].aminmax())
            reasons[row] = (
                f"input values of {low:.4g} to {high:.4g} are outside the range at calibration, {self.low:.4g} to {self.high:.4g};"
                " normalise the image in the same way"
            )
        return reasons

    def suspicion(self, images: Tensor) -> str | None:
        """Describe how the statistics of a batch differ from calibration; `None` if they do not, or the batch is too small."""
        if len(images) < SEVERAL:
            return None
        flat = images.flatten(1).float()
        found = {"brightness": flat.mean(dim=1).mean(), "contrast": flat.std(dim=1).mean()}
        for name, value in found.items():
            known = getattr(self, name)
            if known is not None and abs(float(value) - known[0]) > FAR * max(known[1], 1e-6 * (self.high - self.low)):
                return (
                    f"the mean {name} of the input, {float(value):.3g}, is far from that at calibration,"
                    f" {known[0]:.3g} ± {known[1]:.2g}; is it normalised in the same way?"
                )
        return None


@dataclass
class InputWatch:
    """Collects the range and statistics of batches of input."""

    shape: tuple[int, ...] | None = None
    rows: list[Tensor] = field(default_factory=list)
    """Lowest and highest value, mean and standard deviation of each image, batch by batch."""

    def noted(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of a loader, and take their images into account."""
        for batch in loader:
            self.note(unpack(batch)[0])
            yield batch

    def note(self, images: Tensor) -> Tensor:
        """Take a batch into account and return it unchanged."""
        flat = images.detach().flatten(1).float()
        self.shape = tuple(images.shape[1:])
        self.rows.append(torch.stack((*flat.aminmax(dim=1), flat.mean(dim=1), flat.std(dim=1))).cpu())
        return images

    def found(self, preprocessing: Preprocessing | None) -> InputRange | None:
        """Return the range of all possible images if the preprocessing is known, else of those that were seen, widened."""
        known = range_of(preprocessing)
        if not self.rows:
            return known
        low, high, means, contrasts = torch.cat(self.rows, dim=1).double()
        if not bool(low.isfinite().all() and high.isfinite().all()):
            return known
        ends = known or _widened(float(low.min()), float(high.max()), SEEN)
        return replace(ends, brightness=_mean_and_std(means), contrast=_mean_and_std(contrasts))


def range_of(preprocessing: Preprocessing | None) -> InputRange | None:
    """Return the range of values of preprocessed images; `None` if the preprocessing is unknown."""
    if preprocessing is None:
        return None
    mean, std = torch.tensor([preprocessing.mean, preprocessing.std], dtype=torch.float64)
    return _widened(float((-mean / std).min()), float(((1 - mean) / std).max()), KNOWN)


def _widened(low: float, high: float, share: float) -> InputRange:
    margin = share * max(high - low, 1e-6)
    return InputRange(_six_digits(low - margin), _six_digits(high + margin))


def _mean_and_std(values: Tensor) -> tuple[float, float]:
    return _six_digits(values.mean()), _six_digits(values.std(correction=0))


def _six_digits(value: float | Tensor) -> float:
    return float(f"{float(value):.6g}")

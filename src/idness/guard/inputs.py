"""The range and contrast of the network's input at calibration; input outside the range is rejected whatever its score."""

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
"""Fractions of its width by which the range is widened: for resizing overshoots if the preprocessing is known, else for unseen values."""
FAR = 2.0
"""Number of standard deviations by which the contrast of a batch must differ to be reported."""
SEVERAL = 8
"""Smallest batch size at which contrast is checked."""


@dataclass(frozen=True)
class InputRange:
    """The range of the network's input values, and the distribution of the contrast of images.

    `contrast` is the mean and the standard deviation, over images, of the standard deviation of an image; `None` if no image was seen.
    """

    low: float
    high: float
    contrast: tuple[float, float] | None = None

    def contains(self, images: Tensor) -> Tensor:
        """Return a mask of the images whose values are all in the range."""
        flat = images.flatten(1).float()
        return (flat.amin(dim=1) >= self.low) & (flat.amax(dim=1) <= self.high)

    def rejected(self, images: Tensor) -> dict[int, str]:
        """Return the rows of images outside the range, with the reasons; warn if the contrast of the batch is suspicious."""
        outside = (~self.contains(images)).nonzero().flatten().tolist()
        if not outside and self.contrast is not None and len(images) >= SEVERAL:
            known, spread = self.contrast
            contrast = float(images.flatten(1).float().std(dim=1).mean())
            if abs(contrast - known) > FAR * max(spread, 1e-6 * (self.high - self.low)):
                warnings.warn(
                    f"Guard: the mean contrast of the input, {contrast:.3g}, is far from that at calibration, {known:.3g} ± {spread:.2g};"
                    " is it normalised in the same way?",
                    IdnessWarning,
                    stacklevel=3,
                )
        reasons = {}
        for row in outside:
            low, high = map(float, images[row].aminmax())
            reasons[row] = (
                f"input values of {low:.4g} to {high:.4g} are outside the range at calibration, {self.low:.4g} to {self.high:.4g};"
                " normalise the image in the same way"
            )
        return reasons


@dataclass
class InputWatch:
    """A recorder of the range and contrast of input batches."""

    rows: list[Tensor] = field(default_factory=list)
    """Lowest and highest value and standard deviation of each image, batch by batch."""

    def noted(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of a loader, recording their images."""
        for batch in loader:
            self.note(unpack(batch)[0])
            yield batch

    def note(self, images: Tensor) -> Tensor:
        """Record a batch and return it unchanged."""
        flat = images.detach().flatten(1).float()
        self.rows.append(torch.stack((*flat.aminmax(dim=1), flat.std(dim=1))).cpu())
        return images

    def found(self, preprocessing: Preprocessing | None) -> InputRange | None:
        """Return the range of all possible images if the preprocessing is known, else that of the recorded images, widened."""
        known = range_of(preprocessing)
        if not self.rows:
            return known
        low, high, contrasts = torch.cat(self.rows, dim=1).double()
        if not bool(low.isfinite().all() and high.isfinite().all()):
            return known
        ends = known or _widened(float(low.min()), float(high.max()), SEEN)
        return replace(ends, contrast=(_six_digits(contrasts.mean()), _six_digits(contrasts.std(correction=0))))


def range_of(preprocessing: Preprocessing | None) -> InputRange | None:
    """Return the range of values of preprocessed images; `None` if the preprocessing is unknown."""
    if preprocessing is None:
        return None
    mean, std = torch.tensor([preprocessing.mean, preprocessing.std], dtype=torch.float64)
    return _widened(float((-mean / std).min()), float(((1 - mean) / std).max()), KNOWN)


def _widened(low: float, high: float, share: float) -> InputRange:
    margin = share * max(high - low, 1e-6)
    return InputRange(_six_digits(low - margin), _six_digits(high + margin))


def _six_digits(value: float | Tensor) -> float:
    return float(f"{float(value):.6g}")

"""What the network's input was like at calibration, so that input of another kind is told: a score alone may not show it."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field

import torch
from torch import Tensor

from idness.core.errors import IdnessWarning, InputError
from idness.data import Preprocessing

KNOWN, SEEN = 0.5, 1.0
"""By how much of its width the range is widened: resizing overshoots where it is known, a few images show less than all of it."""
FAR = 2.0
"""Standard deviations between images by which the mean of a batch must differ to be told."""
SEVERAL = 8
"""Images without which a batch tells nothing about how it was normalised."""


@dataclass(frozen=True)
class InputRange:
    """Holds which values the network's input has, and how the means and the contrasts of its images are distributed.

    Args:
        low: the lowest value that an image may hold.
        high: the highest one.
        brightness: mean and standard deviation, over images, of the mean of an image's values; none where no image was seen.
        contrast: the same of the standard deviation of an image's values.
    """

    low: float
    high: float
    brightness: tuple[float, float] | None = None
    contrast: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        numbers = (self.low, self.high, *(self.brightness or ()), *(self.contrast or ()))
        if not self.low <= self.high or not all(math.isfinite(number) for number in numbers):
            raise InputError(f"InputRange: low and high must be finite and in order, got {self.low} and {self.high}")

    def holds(self, images: Tensor) -> Tensor:
        """Say of each image whether all its values are among those that it may hold."""
        flat = images.flatten(1).float()
        return (flat.amin(dim=1) >= self.low) & (flat.amax(dim=1) <= self.high)

    def rejected(self, images: Tensor) -> dict[int, str]:
        """Give the rows of images that are not of this kind, each with its reason, and warn of what is odd about the batch."""
        inside = self.holds(images)
        odd = self.suspicion(images) if bool(inside.all()) else None
        if odd is not None:
            warnings.warn(f"Guard: {odd}", IdnessWarning, stacklevel=3)
        return {int(row): self.reason(images[row]) for row in (~inside).nonzero().flatten()}

    def reason(self, image: Tensor) -> str:
        """Say why an image is not of this kind."""
        found = f"{float(image.min()):.4g} to {float(image.max()):.4g}"
        return (
            f"the input's values, {found}, are not like those at calibration, {self.low:.4g} to {self.high:.4g};"
            " normalise it in the same way"
        )

    def suspicion(self, images: Tensor) -> str | None:
        """Say what is odd about a batch as a whole; none where nothing is, or where it is too small to tell."""
        if len(images) < SEVERAL:
            return None
        flat = images.flatten(1).float()
        found = {"brightness": flat.mean(dim=1).mean(), "contrast": flat.std(dim=1).mean()}
        for name, value in found.items():
            known = getattr(self, name)
            if known is not None and abs(float(value) - known[0]) > FAR * max(known[1], 1e-6 * (self.high - self.low)):
                return (
                    f"the {name} of the input, {float(value):.3g} on average, is far from that at calibration,"
                    f" {known[0]:.3g} ± {known[1]:.2g}; is it normalised in the same way?"
                )
        return None


@dataclass
class InputWatch:
    """Gathers what batches of input are like, while they go by."""

    low: float = math.inf
    high: float = -math.inf
    means: list[Tensor] = field(default_factory=list)
    contrasts: list[Tensor] = field(default_factory=list)

    def note(self, images: Tensor) -> Tensor:
        """Look at a batch, and give it back as it is."""
        if images.numel() and images.ndim > 1:
            flat = images.detach().flatten(1).float()
            self.low, self.high = min(self.low, float(flat.min())), max(self.high, float(flat.max()))
            self.means.append(flat.mean(dim=1).cpu())
            self.contrasts.append(flat.std(dim=1).cpu())
        return images

    def found(self, how: Preprocessing | None) -> InputRange | None:
        """Give the range: that of all pictures where it is known how they become input, else what was seen, widened."""
        if not self.means or not math.isfinite(self.high - self.low):
            return of_preprocessing(how)
        ends = of_preprocessing(how) or widened(self.low, self.high, SEEN)
        return InputRange(ends.low, ends.high, _spread(self.means), _spread(self.contrasts))


def of_preprocessing(how: Preprocessing | None) -> InputRange | None:
    """Give the range of values that pictures have after preprocessing; none where it is not known."""
    if how is None:
        return None
    dark = [-mean / std for mean, std in zip(how.mean, how.std, strict=True)]
    light = [(1 - mean) / std for mean, std in zip(how.mean, how.std, strict=True)]
    return widened(min(dark), max(light), KNOWN)


def widened(low: float, high: float, share: float) -> InputRange:
    """Widen a range by a share of its width on both sides."""
    margin = share * max(high - low, 1e-6)
    return InputRange(short(low - margin), short(high + margin))


def _spread(parts: list[Tensor]) -> tuple[float, float] | None:
    values = torch.cat(parts).double()
    if not bool(torch.isfinite(values).all()):
        return None
    return short(values.mean()), short(values.std(correction=0))


def short(value: float | Tensor) -> float:
    """Round to six digits: more mean nothing here, and no digit of a file should be without meaning."""
    return float(f"{float(value):.6g}")

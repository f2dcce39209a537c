"""VRA -- Xu et al., "VRA: Variational Rectified Activation for Out-of-distribution Detection", NeurIPS 2023."""

from dataclasses import dataclass

from torch import Tensor

from idness.core.errors import OptionError
from idness.core.options import percent
from idness.core.types import Activations, Head
from idness.detectors.detector import Enhancer
from idness.detectors.kernels import percentile_of


@dataclass(kw_only=True)
class VRA(Enhancer):
    """Zeroing of low features and clipping of high ones, at percentiles of all in-distribution activations.

    The percentiles are those of validation images if there are any, else of training images.

    Args:
        low: percentage of activations that are set to zero.
        high: percentage of activations below the clip.
    """

    formula = r"E(W a' + b), \quad a'_j = 0 \ \text{if} \ a_j < P_{low}, \ \text{else} \ \min(a_j, P_{high})"
    assumes = "small features carry little information, and OOD images activate a few far too much"
    needs_train = assumes_nonnegative = needs_val = True
    grid = {"low": (50.0, 60.0, 70.0), "high": (90.0, 95.0, 99.0)}

    low: float = percent(60.0)
    high: float = percent(99.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low >= self.high:
            raise OptionError(f"VRA: low must be below high ({self.high:g}), got {self.low:g}")

    def learn(self, head: Head, train: Activations, val: Activations) -> None:
        self.floor_, self.clip_ = percentile_of(val.features, self.low), percentile_of(val.features, self.high)

    def shape(self, features: Tensor) -> Tensor:
        # Zero, as in the paper and its code; OpenOOD raises low features to the lower threshold.
        return features.minimum(self.clip_) * (features >= self.floor_).to(features)

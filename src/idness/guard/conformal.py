"""Split-conformal p-values and thresholds: how unusual a score is among scores of in-distribution images.

Under exchangeability of the calibration images and the new one, P(p <= alpha) <= alpha for an in-distribution image,
whatever the network and the detector; docs/guarantee.md says what that does and does not promise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from idness.core.checks import check_fraction
from idness.core.errors import InputError, OptionError

PLACES = 9
"""Decimals to which products of rates and counts are rounded: 1 - 0.95 is not 0.05 in binary, and a rank must not hang on that."""
CONSTANT = 1e-6
"""By how much scores must differ, relative to their size, to be more than rounding."""


def check_spread(method: str, scores: Tensor, logits: Tensor, blank: Tensor) -> None:
    """Refuse scores that are all the same, unless it is because the network is sure of every image: such a guard never flags.

    Args:
        method: who gave the scores.
        scores: of in-distribution images.
        logits: of some of them.
        blank: the score of an image without any feature.
    """
    if len(scores) < 2 or not _same(scores):
        return
    if float(blank.min()) < float(scores.min()) and not (len(logits) > 1 and bool(_same(logits))):
        return
    raise InputError(
        f"calibrate: {method} gives all {len(scores):,} in-distribution images nearly the same score, {float(scores.min()):.7g},"
        " so that no image could ever be told from them; are the network's weights and its input right? else use another method"
    )


def _same(values: Tensor) -> bool:
    """Tell whether what images give is the same for all, up to rounding."""
    return bool((values.amax(dim=0) - values.amin(dim=0) <= CONSTANT * values.abs().amax(dim=0)).all())


def needed(recall: float) -> int:
    """Count the calibration images without which no score could ever be called out-of-distribution at this recall."""
    return max(1, math.ceil(round(1 / false_alarm_rate(recall), PLACES)) - 1)


def false_alarm_rate(recall: float) -> float:
    """Turn a recall into the share of in-distribution images that may be flagged, free of binary dust."""
    return round(1 - recall, 12)


def wanted_recalls(
    recall: float | Sequence[float] | None, false_alarm: float | Sequence[float] | None
) -> tuple[float, ...]:
    """Give the recalls that were asked for, as such or as false-alarm rates; 0.95 where neither was."""
    if recall is not None and false_alarm is not None:
        raise OptionError("calibrate: give recall or false_alarm, got both; false_alarm is 1 - recall")
    if false_alarm is not None:
        recall = [round(1 - rate, 12) for rate in _listed("false_alarm", false_alarm)]
    return _listed("recall", 0.95 if recall is None else recall)


def _listed(name: str, value: float | Sequence[float]) -> tuple[float, ...]:
    values = tuple(value) if isinstance(value, Sequence) else (value,)
    if not values:
        raise OptionError(f"calibrate: {name} must be at least one number in (0, 1), got none")
    for each in values:
        check_fraction("calibrate", name, each)
    return tuple(float(each) for each in values)


@dataclass(frozen=True, eq=False)
class Calibration:
    """Holds scores of in-distribution images, sorted within groups: one group, or one per predicted class.

    Args:
        scores: the scores, each group's in rising order, one group after another.
        sizes: the number of scores in each group.
    """

    scores: Tensor
    sizes: Tensor

    def __post_init__(self) -> None:
        whole = self.sizes.ndim == 1 and not self.sizes.is_floating_point() and not bool((self.sizes < 0).any())
        if not whole or self.scores.ndim != 1 or len(self.scores) == 0 or int(self.sizes.sum()) != len(self.scores):
            raise InputError(
                f"Calibration: sizes must be counts that add up to the number of scores, got {int(self.sizes.sum())}"
                f" and shape {tuple(self.scores.shape)}"
            )
        if not bool(torch.isfinite(self.scores).all()):
            raise InputError("Calibration: scores must be finite, got NaN or Inf")
        falls = (self.scores.diff() < 0).nonzero().flatten() + 1
        if not bool(torch.isin(falls, self.sizes.cumsum(0)).all()):
            raise InputError("Calibration: scores must rise within each group, got others")

    @staticmethod
    def pooled(scores: Tensor) -> Calibration:
        """Take all scores as one group."""
        return Calibration(scores.detach().float().sort().values, torch.tensor([len(scores)], device=scores.device))

    @staticmethod
    def by_class(scores: Tensor, labels: Tensor, classes: int) -> Calibration:
        """Group scores by predicted class (Mondrian), so that the promise holds within each class."""
        rising = scores.detach().float().sort()
        grouped = labels[rising.indices].sort(stable=True)
        return Calibration(rising.values[grouped.indices], torch.bincount(labels, minlength=classes))

    @property
    def per_class(self) -> bool:
        """Whether each predicted class has scores of its own."""
        return len(self.sizes) > 1

    @cached_property
    def ceiling(self) -> float:
        """The score above which one is far from all of calibration: as far above the highest as that is above the median."""
        ordered = self.scores.sort().values.double()
        return float(2 * ordered[-1] - ordered[len(ordered) // 2])

    def __len__(self) -> int:
        return len(self.scores)

    def score_groups(self) -> list[list[float]]:
        """Give the scores of each group in rising order, as plain numbers."""
        return [part.tolist() for part in torch.split(self.scores.cpu().double(), self.sizes.tolist())]

    def group(self, labels: Tensor) -> Tensor:
        """Say which group each image is compared with."""
        return labels.clamp(min=0) if self.per_class else torch.zeros_like(labels)

    def p_values(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Compute (1 + number of calibration scores <= s) / (n + 1) for each image."""
        group = self.group(labels)
        return (1 + self.count(scores, group)).float() / (1 + self.sizes[group]).float()

    def count(self, scores: Tensor, group: Tensor) -> Tensor:
        """Count the calibration scores of the same group that are at most as large.

        A binary search in plain tensor operations: its memory does not grow with the calibration set, and it can be exported.
        """
        starts, sizes = (self.sizes.cumsum(0) - self.sizes)[group], self.sizes[group]
        found = torch.zeros_like(group)
        step = 1 << (len(self.scores).bit_length() - 1)
        while step:
            tried = found + step
            at = (starts + tried - 1).clamp(max=len(self.scores) - 1)
            found = torch.where((tried <= sizes) & (self.scores[at] <= scores), tried, found)
            step >>= 1
        return found

    def thresholds(self, recall: float, names: Sequence[str] | None = None) -> Tensor:
        """Find the score of each group below which p <= 1 - recall; fewer images than that needs are refused.

        Args:
            recall: share of in-distribution images to keep.
            names: class names for the message.
        """
        check_fraction("calibrate", "recall", recall)
        least = needed(recall)
        short = (self.sizes < least).nonzero().flatten().tolist()
        if short:
            raise InputError(self._too_few(recall, least, short, names))
        # p <= alpha exactly when at most k - 1 calibration scores are <= s, that is when s is below the k-th smallest.
        ranks = [math.floor(round(false_alarm_rate(recall) * (size + 1), PLACES)) for size in self.sizes.tolist()]
        starts = self.sizes.cumsum(0) - self.sizes
        return self.scores[starts + torch.tensor(ranks, device=starts.device) - 1]

    def spread(self, recall: float, level: float = 0.95) -> tuple[float, float]:
        """Give the range in which the false-alarm rate of this very calibration set lies with probability `level`.

        Over calibration sets of n images it follows a Beta(k, n + 1 - k) distribution, whatever the detector, when scores have no ties.
        """
        from scipy.stats import beta

        size = int(self.sizes.min())
        rank = math.floor(round(false_alarm_rate(recall) * (size + 1), PLACES))
        low, high = beta.interval(level, rank, size + 1 - rank)
        return float(low), float(high)

    def to(self, device: torch.device | str) -> Calibration:
        """Move to a device."""
        return Calibration(self.scores.to(device), self.sizes.to(device))

    def _too_few(self, recall: float, least: int, short: list[int], names: Sequence[str] | None) -> str:
        promise = f"calibrate: a false-alarm rate of {false_alarm_rate(recall):g} needs at least {least} in-distribution images"
        if not self.per_class:
            return f"{promise}, got {len(self)}; add images or lower recall"
        worst = ", ".join(f"{names[i] if names else i}: {int(self.sizes[i])}" for i in short[:3])
        return (
            f"{promise} predicted as each class, got too few in {len(short)} classes ({worst});"
            " add images, lower recall or use one threshold for all"
        )

"""Split-conformal p-values and thresholds from the scores of in-distribution images.

If the calibration images and a new in-distribution image are exchangeable, P(p <= alpha) <= alpha for any network and detector;
docs/guarantee.md explains what that does and does not guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from idness.core.errors import InputError, OptionError
from idness.core.options import check_fraction
from idness.guard.verdict import images_for_fdr

PLACES = 9
"""Decimals to which products of rates and counts are rounded, because 1 - 0.95 is not exactly 0.05 and must not change a rank."""
CONSTANT = 1e-6
"""Relative difference below which scores count as equal."""


def check_spread(method: str, scores: Tensor, logits: Tensor, blank: Tensor) -> None:
    """Raise if all scores are equal, since such a guard never flags anything, unless the network is certain about every image.

    It is certain if logits differ and `blank`, the score of an image whose features are all zero, is lower.
    """

    def constant(values: Tensor) -> bool:
        return bool((values.amax(dim=0) - values.amin(dim=0) <= CONSTANT * values.abs().amax(dim=0)).all())

    sure = float(blank.min()) < float(scores.min()) and not constant(logits)
    if len(scores) > 1 and constant(scores) and not sure:
        raise InputError(
            f"calibrate: {method} gives all {len(scores):,} in-distribution images nearly the same score ({float(scores.min()):.7g}),"
            " so no image could be flagged; check the weights and the preprocessing, or use another method"
        )


def calibration_images(recall: float, confidence: float | None = None) -> int:
    """Return the smallest number of calibration images with which images can be flagged at this recall.

    Example:
        >>> calibration_images(0.95), calibration_images(0.95, confidence=0.95)
        (19, 59)
    """
    rate = false_alarm_rate(recall)
    if confidence is not None:  # the lowest of n scores is a valid threshold with probability 1 - recall^n
        return math.ceil(round(math.log(1 - confidence) / math.log(1 - rate), PLACES))
    return max(1, math.ceil(round(1 / rate, PLACES)) - 1)


def false_alarm_rate(recall: float) -> float:
    """Return 1 - recall, the fraction of in-distribution images that may be flagged, without rounding errors."""
    return round(1 - recall, 12)


def wanted_recalls(
    recall: float | Sequence[float] | None, false_alarm: float | Sequence[float] | None, confidence: float | None = None
) -> tuple[float, ...]:
    """Return the requested recalls, given as such or as false-alarm rates; 0.95 by default. Checks the confidence too."""
    if confidence is not None:
        check_fraction("calibrate", "confidence", confidence)
    if recall is not None and false_alarm is not None:
        raise OptionError("got both recall and false_alarm; pass one of them: false_alarm is 1 - recall")
    name, given = (
        ("recall", 0.95 if recall is None else recall) if false_alarm is None else ("false_alarm", false_alarm)
    )
    values = tuple(given) if isinstance(given, Sequence) else (given,)
    if not values:
        raise OptionError(f"calibrate: {name} must be at least one number in (0, 1), got none")
    for each in values:
        check_fraction("calibrate", name, each)
    return tuple(float(each) if name == "recall" else false_alarm_rate(each) for each in values)


def plan(
    recall: float, confidence: float | None = None, fdr: float | None = None, images: int = 1000, ood: float = 0.01
) -> list[tuple[str, int]]:
    """Return the available guarantees, each with the number of calibration images that it needs.

    The last one is for `images` screened together, of which the fraction `ood` is expected to be flagged.
    """
    rate, sure, false = false_alarm_rate(recall), confidence or 0.95, fdr or 0.1
    wanted_recalls(recall, None, sure)
    check_fraction("plan", "fdr", false)
    found, most = max(1, round(ood * images)), f"flag at most {100 * rate:.4g} % of ID images"
    least = size = calibration_images(recall, sure)
    # With fewer images, a threshold with confidence is so low that it detects less than the guarantee allows.
    while _rank(recall, size, sure) < 0.8 * rate * (size + 1):
        size = math.ceil(1.05 * size)
    return [
        (f"{most} on average", calibration_images(recall)),
        (f"{most} with {100 * sure:g} % confidence", least),
        (f"the same, and at least {80 * rate:.4g} % on average", size),
        (
            f"flag {found:,} of {images:,} images together, at most {100 * false:g} % of them ID on average",
            images_for_fdr(images, found, false),
        ),
    ]


@dataclass(frozen=True, eq=False)
class Calibration:
    """Scores of in-distribution images, sorted within groups: one group, or one per predicted class.

    Args:
        scores: the scores, one group after another, each in ascending order.
        sizes: the number of scores in each group.
    """

    scores: Tensor
    sizes: Tensor

    def __post_init__(self) -> None:
        if int(self.sizes.sum()) != len(self.scores) or not bool(torch.isfinite(self.scores).all()):
            raise InputError("Calibration: scores must be finite, and their number must be the sum of the group sizes")

    @staticmethod
    def pooled(scores: Tensor) -> Calibration:
        """Return a calibration with all scores in one group."""
        return Calibration(scores.detach().float().sort().values, torch.tensor([len(scores)], device=scores.device))

    @staticmethod
    def by_class(scores: Tensor, labels: Tensor, classes: int) -> Calibration:
        """Return a calibration with a group per predicted class (Mondrian), so that the guarantee holds within each class."""
        ascending = scores.detach().float().sort()
        grouped = labels[ascending.indices].sort(stable=True)
        return Calibration(ascending.values[grouped.indices], torch.bincount(labels, minlength=classes))

    @property
    def per_class(self) -> bool:
        """Whether each predicted class has its own group."""
        return len(self.sizes) > 1

    @cached_property
    def ceiling(self) -> float:
        """The score above which an image is suspicious: the highest score plus its distance from the median."""
        ordered = self.scores.sort().values.double()
        return float(2 * ordered[-1] - ordered[len(ordered) // 2])

    def __len__(self) -> int:
        return len(self.scores)

    def group(self, labels: Tensor) -> Tensor:
        """Return the index of the group that each image is compared with."""
        return labels.clamp(min=0) if self.per_class else torch.zeros_like(labels)

    def p_values(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return (1 + number of calibration scores <= s) / (n + 1) for each image."""
        group = self.group(labels)
        return (1 + self.count(scores, group)).float() / (1 + self.sizes[group]).float()

    def count(self, scores: Tensor, group: Tensor) -> Tensor:
        """Return for each score the number of calibration scores of its group that are not larger.

        A binary search in plain tensor operations, which can be exported and whose memory does not grow with the calibration set.
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

    def thresholds(self, recall: float, confidence: float | None = None) -> Tensor:
        """Return the score of each group below which an image is flagged: p <= 1 - recall, or lower for a confidence.

        Args:
            recall: fraction of in-distribution images to accept.
            confidence: the probability, over calibration sets, with which the false-alarm rate is at most 1 - recall; if `None`,
                the average rate over calibration sets is at most 1 - recall.

        Raises:
            InputError: if a group has too few images for this recall.
        """
        check_fraction("calibrate", "recall", recall)
        least = calibration_images(recall, confidence)
        if int(self.sizes.min()) < least:
            sure = "" if confidence is None else f" with {100 * confidence:g} % confidence"
            each = f" predicted as each class, and for class {int(self.sizes.argmin())}" if self.per_class else ""
            raise InputError(
                f"calibrate: a false-alarm rate of {false_alarm_rate(recall):g}{sure} needs at least {least} in-distribution images{each},"
                f" got {int(self.sizes.min())}; add images or lower recall{', or use one threshold for all' if each else ''}"
            )
        # p <= alpha exactly if at most k - 1 calibration scores are <= s, that is, if s is below the k-th smallest.
        ranks = [_rank(recall, size, confidence) for size in self.sizes.tolist()]
        return self.scores[self.sizes.cumsum(0) - self.sizes + torch.tensor(ranks, device=self.sizes.device) - 1]

    def spread(self, recall: float, level: float = 0.95, confidence: float | None = None) -> tuple[float, float]:
        """Return the interval that contains the false-alarm rate of one calibration of this size with probability `level`.

        Over calibration sets of n images, the rate follows Beta(k, n + 1 - k) for any detector whose scores have no ties.
        """
        from scipy.stats import beta

        size = int(self.sizes.min())
        rank = _rank(recall, size, confidence)
        low, high = beta.interval(level, rank, size + 1 - rank)
        return float(low), float(high)

    def to(self, device: torch.device | str) -> Calibration:
        """Return a copy on a device."""
        return Calibration(self.scores.to(device), self.sizes.to(device))


def _rank(recall: float, size: int, confidence: float | None = None) -> int:
    """Return the rank of the threshold among `size` calibration scores, counted from the lowest.

    The rate below the k-th lowest score follows Beta(k, n + 1 - k). It is at most alpha on average if k <= alpha (n + 1), and with
    confidence c if P(X < k) <= 1 - c for the number X ~ Binomial(n, alpha) of scores in the lowest alpha of the distribution.
    """
    if confidence is None:
        return math.floor(round(false_alarm_rate(recall) * (size + 1), PLACES))
    from scipy.stats import binom

    return int(binom.ppf(round(1 - confidence, 12), size, false_alarm_rate(recall)))

"""Notices when new images are no longer like those that calibrated: a conformal test martingale over their scores.

Each score is ranked among the calibration scores and those that came since. While all are exchangeable, the ranks, ties broken
at random, are independent and uniform, whatever the network and the method. Against that a gambler bets whose wealth can then
not be expected to grow: that it ever reaches 1 / LEVEL within a period has a chance of at most LEVEL (Ville's inequality).
Vovk, Gammerman and Shafer, "Algorithmic Learning in a Random World", chapter 8.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from idness.guard.conformal import Calibration

PERIOD = 10_000
"""Images after which the test begins anew, so that it neither grows nor tires."""
LEVEL = 0.01
"""The chance of a false alarm within a period."""
HELD = 200
"""Images for which an alarm lasts after the evidence for it has ended."""
POWERS = (0.3, 0.6, 0.85)
"""Exponents of the bets on ranks near one end: the smaller, the more a few extreme ones win."""


@dataclass(frozen=True)
class Drift:
    """Says how much speaks against that nothing has changed.

    Args:
        evidence: by how much the gambler has multiplied the stake in this period, at best.
        alarm: whether that was enough, in this period or so shortly before that it still counts.
        images: how many images were looked at in all.
    """

    evidence: float = 1.0
    alarm: bool = False
    images: int = 0

    @property
    def p_value(self) -> float:
        """How likely so much evidence is, at most, while nothing has changed."""
        return min(1.0, 1 / self.evidence)


class DriftWatch:
    """Watches scores as they come.

    Args:
        calibration: the scores of the calibration images.
    """

    def __init__(self, calibration: Calibration) -> None:
        ends = calibration.sizes.cumsum(0).tolist()
        scores = calibration.scores.cpu().double().tolist()
        self._known = [scores[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
        self._random = np.random.default_rng(0)
        self.last = Drift()
        self._since_alarm: int | None = None
        self._bets: NDArray[np.float64] = np.zeros(len(_odds(0.5)))
        self._begin()

    def observe(self, scores: Iterable[float], groups: Iterable[int] | None = None) -> Drift:
        """Take scores in the order in which their images came, with the group of each where each class has a threshold."""
        listed = list(scores)
        for score, group in zip(listed, [0] * len(listed) if groups is None else groups, strict=True):
            self._take(score, group)
        return self.last

    def _take(self, score: float, group: int) -> None:
        if self._count == PERIOD:
            self._begin()
        self._count += 1
        # Some of the stake is set on a change that begins now, the rest waits for a later one.
        self._waiting -= 1 / PERIOD
        self._bets = (self._bets + 1 / PERIOD / len(self._bets)) * _odds(self._rank(score, group))
        wealth = self._waiting + float(self._bets.sum())
        best = max(1.0 if self._count == 1 else self.last.evidence, wealth)
        rang = wealth >= 1 / LEVEL
        if rang:
            self._since_alarm = 0
        elif self._since_alarm is not None:
            self._since_alarm += 1
        alarm = self._since_alarm is not None and self._since_alarm < HELD
        self.last = Drift(best, alarm, self.last.images + 1)
        if rang:
            self._begin()  # once more from the beginning: does it go on?

    def _rank(self, score: float, group: int) -> float:
        bag = self._bags[group if len(self._bags) > 1 else 0]
        low, high = bisect_left(bag, score), bisect_right(bag, score)
        rank = (low + float(self._random.random()) * (high - low + 1)) / (len(bag) + 1)
        insort(bag, score)
        return min(max(rank, 1e-12), 1 - 1e-12)

    def _begin(self) -> None:
        self._bags = [list(part) for part in self._known]
        self._count, self._waiting = 0, 1.0
        self._bets = np.zeros_like(self._bets)


def _odds(rank: float) -> NDArray[np.float64]:
    """Give what each bet pays for a rank in (0, 1); each pays 1 on average over uniform ranks."""
    low = [power * rank ** (power - 1) for power in POWERS]
    high = [power * (1 - rank) ** (power - 1) for power in POWERS]
    both = [0.5 * (one + other) for one, other in zip(low, high, strict=True)]
    middle = [6 * rank * (1 - rank)]
    return np.array(low + high + both + middle)


def watched(calibration: Calibration, seen: Sequence[tuple[float, int]]) -> Drift:
    """Look at scores and groups of images that are all there: in random order, as folders hold one class after another."""
    watch, found = DriftWatch(calibration), Drift()
    alarm = False
    for place in np.random.default_rng(0).permutation(len(seen)):
        found = watch.observe([seen[place][0]], [seen[place][1]])
        alarm = alarm or found.alarm
    return replace(found, alarm=alarm)

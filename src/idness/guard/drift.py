"""Notices when new images are no longer like those that calibrated: a conformal test martingale over their scores.

Each score is ranked among the calibration scores and those that came since. While all are exchangeable, the ranks, ties broken
at random, are independent and uniform, whatever the network and the method. Against that a gambler bets whose wealth can then
not be expected to grow: that it ever reaches 1 / LEVEL within a period has a chance of at most LEVEL (Ville's inequality).
Vovk, Gammerman and Shafer, "Algorithmic Learning in a Random World", chapter 8.
"""

from __future__ import annotations

import base64
import json
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

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


class Calibrated(Protocol):
    """Knows the scores of the calibration images: a `Calibration`, or what an exported guard carries of one."""

    def score_groups(self) -> list[list[float]]:
        """Give the scores in rising order: of all images, or of those of each predicted class."""


@dataclass(frozen=True)
class KnownScores:
    """Holds the scores of the calibration images as an exported guard carries them, which torch is not needed for."""

    groups: list[list[float]]

    def score_groups(self) -> list[list[float]]:
        """Give the scores in rising order: of all images, or of those of each predicted class."""
        return self.groups

    def text(self) -> str:
        """Write the scores in little space and to the last bit."""
        scores = np.array([score for group in self.groups for score in group], dtype="<f4")
        sizes = [len(group) for group in self.groups]
        return json.dumps({"sizes": sizes, "scores": base64.b64encode(scores.tobytes()).decode()})

    @staticmethod
    def parse(text: str) -> KnownScores:
        """Read what `text` wrote; anything else is a ValueError."""
        found = json.loads(text)
        sizes: list[int] = found["sizes"]
        scores = np.frombuffer(base64.b64decode(found["scores"], validate=True), dtype="<f4").astype(np.float64)
        if not sizes or min(sizes) < 0 or sum(sizes) != len(scores) or not np.isfinite(scores).all():
            raise ValueError("sizes must be counts that add up to the number of scores, which must be finite")
        groups = [scores[start:end].tolist() for start, end in pairwise(np.cumsum([0, *sizes]))]
        if any(low > high for group in groups for low, high in pairwise(group)):
            raise ValueError("scores must rise within each group")
        return KnownScores(groups)


class DriftWatch:
    """Watches scores as they come.

    Args:
        calibration: the scores of the calibration images.
    """

    def __init__(self, calibration: Calibrated) -> None:
        self._known = calibration.score_groups()
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


def watched(calibration: Calibrated, seen: Sequence[tuple[float, int]]) -> Drift:
    """Look at scores and groups of images that are all there: in random order, as folders hold one class after another."""
    watch, found = DriftWatch(calibration), Drift()
    alarm = False
    for place in np.random.default_rng(0).permutation(len(seen)):
        found = watch.observe([seen[place][0]], [seen[place][1]])
        alarm = alarm or found.alarm
    return replace(found, alarm=alarm)

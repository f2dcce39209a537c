"""A monitor of drift: a conformal test martingale over the scores of new images.

Each score is ranked among the calibration scores. While new and calibration images are exchangeable, the gaps between calibration
scores fill like Polya's urn, whatever the network and the method, so that the probability of the next rank being extreme is known
exactly. Bets at these fair odds cannot be expected to win: the chance that their wealth reaches 1 / LEVEL within a period is at
most LEVEL (Ville's inequality). Vovk, Gammerman and Shafer, "Algorithmic Learning in a Random World", chapter 8.
"""

from __future__ import annotations

import base64
import json
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

PERIOD = 10_000
"""Images after which the test starts again."""
LEVEL = 0.01
"""The chance of a false alarm within a period."""
HELD = 200
"""Images for which an alarm lasts after its evidence has ended."""
CUTS = np.array([0.02, 0.1, 0.9, 0.98])
"""Ranks that bound the events bet on: at most 0.02, at most 0.1, at least 0.9, at least 0.98, and between 0.1 and 0.9."""
STAKES = np.array([[0.05], [0.2], [0.7]])
"""Shares of the wealth that are staked on an event: the share of images that have changed for which the bet is best."""
AT_ONCE = 0.7
"""Share of the initial wealth that bets on a change from the first image on; the rest, on changes that begin later."""


@dataclass(frozen=True)
class Drift:
    """The evidence that images have changed since calibration.

    Args:
        evidence: the largest factor by which the bets have multiplied their wealth in this period.
        alarm: whether it reached 1 / LEVEL, now or within the last HELD images.
        images: number of images seen.
    """

    evidence: float = 1.0
    alarm: bool = False
    images: int = 0

    @property
    def p_value(self) -> float:
        """The chance, at most, of so much evidence while nothing has changed."""
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


class _Urn:
    """The ranks of new scores among the calibration scores of one group, with exact probabilities of the next rank."""

    def __init__(self, scores: Sequence[float], random: np.random.Generator) -> None:
        # Ties are broken by a second number that each score keeps.
        self._known = sorted(zip(scores, random.random(len(scores)).tolist(), strict=True))
        self._gaps = len(self._known) + 1
        self._whole, self._part = np.divmod(np.round(CUTS * self._gaps, 9), 1)
        self.empty()

    def empty(self) -> None:
        """Forget the new scores."""
        self._below, self._inside, self._count = np.zeros(len(CUTS)), np.zeros(len(CUTS)), 0

    def shares(self) -> NDArray[np.float64]:
        """Return, for each cut, the probability that the next rank is below it."""
        drawn: NDArray[np.float64] = self._whole + self._below + self._part * (1 + self._inside)
        return drawn / (self._gaps + self._count)

    def add(self, score: float, random: np.random.Generator) -> NDArray[np.bool_]:
        """Take a score, and return whether its rank is below each cut."""
        gap = bisect_left(self._known, (score, float(random.random())))
        self._below += gap < self._whole
        self._inside += gap == self._whole
        self._count += 1
        below: NDArray[np.bool_] = gap + float(random.random()) < self._whole + self._part
        return below


class DriftWatch:
    """Monitors scores as they come.

    Args:
        calibration: the scores of the calibration images.
    """

    def __init__(self, calibration: Calibrated) -> None:
        self._random = np.random.default_rng(0)
        self._urns = [_Urn(group, self._random) for group in calibration.score_groups()]
        self.last = Drift()
        self._since_alarm: int | None = None
        self._bets: NDArray[np.float64]
        self._begin()

    def observe(self, scores: Iterable[float], groups: Iterable[int] | None = None) -> Drift:
        """Take scores in the order of their images, with the group of each if every class has a threshold of its own."""
        listed = list(scores)
        for score, group in zip(listed, [0] * len(listed) if groups is None else groups, strict=True):
            self._take(score, group)
        return self.last

    def _take(self, score: float, group: int) -> None:
        if self._count == PERIOD:
            self._begin()
        self._count += 1
        urn = self._urns[group if len(self._urns) > 1 else 0]
        chances = _events(urn.shares())
        won = _events(urn.add(score, self._random).astype(float)) > 0
        self._waiting -= (1 - AT_ONCE) / PERIOD
        self._bets = (self._bets + (1 - AT_ONCE) / PERIOD / self._bets.size) * _odds(chances, won)
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
            self._begin()  # once more from the start: does it continue?

    def _begin(self) -> None:
        for urn in self._urns:
            urn.empty()
        self._count, self._waiting = 0, 1 - AT_ONCE
        shape = (len(STAKES), len(CUTS) + 1)
        self._bets = np.full(shape, AT_ONCE / np.prod(shape))


def _events(below: NDArray[np.float64]) -> NDArray[np.float64]:
    """Turn shares below the cuts into shares of the events: the low ranks, the high ranks and those between."""
    half = len(CUTS) // 2
    return np.concatenate((below[:half], 1 - below[half:], below[half : half + 1] - below[half - 1 : half]))


def _odds(chances: NDArray[np.float64], won: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return what each stake on each event leaves of the wealth, at fair odds: 1 on average."""
    return 1 - STAKES + STAKES * won / chances


def watched(calibration: Calibrated, seen: Sequence[tuple[float, int]]) -> Drift:
    """Monitor scores and groups of images that are all available: in random order, as folders hold one class after another."""
    watch, found = DriftWatch(calibration), Drift()
    alarm = False
    for place in np.random.default_rng(0).permutation(len(seen)):
        found = watch.observe([seen[place][0]], [seen[place][1]])
        alarm = alarm or found.alarm
    return replace(found, alarm=alarm)

"""Drift detection: a conformal test martingale over the scores of new images.

Each score is ranked among the calibration scores. While new and calibration images are exchangeable, the gaps between calibration
scores fill like Polya's urn, whatever the network and the method, so the probability of the next rank being extreme is known
exactly. Bets at these fair odds have no expected gain: the probability that their wealth reaches 1 / LEVEL within a period is at
most LEVEL (Ville's inequality). Vovk, Gammerman and Shafer, "Algorithmic Learning in a Random World", chapter 8.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PERIOD = 10_000
"""Number of images after which the test restarts."""
LEVEL = 0.01
"""The probability of a false alarm within a period."""
HELD = 200
"""Number of images for which an alarm lasts after the evidence that raised it."""
CUTS = np.array([0.02, 0.1, 0.9, 0.98])
"""Relative ranks that delimit the events bet on: at most 0.02, at most 0.1, at least 0.9, at least 0.98, and 0.1 to 0.9."""
STAKES = np.array([[0.05], [0.2], [0.7]])
"""Fractions of the wealth staked on an event; each bet is optimal if that fraction of images has changed."""
AT_ONCE = 0.7
"""Fraction of the initial wealth that bets on a change from the first image on; the rest bets on later changes."""


@dataclass(frozen=True)
class Drift:
    """The evidence that images have changed since calibration.

    Args:
        evidence: the largest factor by which the bets have multiplied their wealth in this period, or the factor that raised the alarm.
        alarm: whether the evidence reached 1 / LEVEL, now or within the last HELD images.
    """

    evidence: float = 1.0
    alarm: bool = False


class _Urn:
    """The ranks of new scores among the calibration scores of one group, with exact probabilities of the next rank."""

    def __init__(self, scores: Sequence[float], random: np.random.Generator) -> None:
        # Ties are broken by a random second number of each score.
        self._known = sorted(zip(scores, random.random(len(scores)).tolist(), strict=True))
        self._gaps = len(self._known) + 1
        self._whole, self._part = np.divmod(np.round(CUTS * self._gaps, 9), 1)
        self.empty()

    def empty(self) -> None:
        """Remove the new scores."""
        self._below, self._inside, self._count = np.zeros(len(CUTS)), np.zeros(len(CUTS)), 0

    def shares(self) -> NDArray[np.float64]:
        """Return, for each cut, the probability that the next rank is below it."""
        drawn: NDArray[np.float64] = self._whole + self._below + self._part * (1 + self._inside)
        return drawn / (self._gaps + self._count)

    def add(self, score: float, random: np.random.Generator) -> NDArray[np.bool_]:
        """Add a score and return whether its rank is below each cut."""
        gap = bisect_left(self._known, (score, float(random.random())))
        self._below += gap < self._whole
        self._inside += gap == self._whole
        self._count += 1
        below: NDArray[np.bool_] = gap + float(random.random()) < self._whole + self._part
        return below


class DriftWatch:
    """A drift monitor for the scores of new images, given the calibration scores of each group (a guard's `groups`)."""

    def __init__(self, groups: Sequence[Sequence[float]]) -> None:
        self._random = np.random.default_rng(0)
        self._urns = [_Urn(group, self._random) for group in groups]
        self.last = Drift()
        self._since_alarm: int | None = None
        self._best = self._raised = 1.0
        self._bets: NDArray[np.float64]
        self._begin()

    def observe(self, scores: Iterable[float], groups: Iterable[int] | None = None) -> Drift:
        """Add scores in the order of their images, with classes if thresholds are per class, and return the state."""
        values = list(scores)
        for score, group in zip(values, [0] * len(values) if groups is None else groups, strict=True):
            self._add(score, group)
        return self.last

    def _add(self, score: float, group: int) -> None:
        if self._count == PERIOD:
            self._begin()
        self._count += 1
        urn = self._urns[group if len(self._urns) > 1 else 0]
        chances = _events(urn.shares())
        won = _events(urn.add(score, self._random).astype(float)) > 0
        self._waiting -= (1 - AT_ONCE) / PERIOD
        self._bets = (self._bets + (1 - AT_ONCE) / PERIOD / self._bets.size) * _odds(chances, won)
        wealth = self._waiting + float(self._bets.sum())
        self._best = max(self._best, wealth)
        rang = wealth >= 1 / LEVEL
        if rang:
            self._since_alarm, self._raised = 0, wealth
        elif self._since_alarm is not None:
            self._since_alarm += 1
        alarm = self._since_alarm is not None and self._since_alarm < HELD
        self.last = Drift(max(self._best, self._raised) if alarm else self._best, alarm)
        if rang:
            self._begin()  # so that a lasting change raises the alarm again

    def _begin(self) -> None:
        for urn in self._urns:
            urn.empty()
        self._count, self._waiting, self._best = 0, 1 - AT_ONCE, 1.0
        shape = (len(STAKES), len(CUTS) + 1)
        self._bets = np.full(shape, AT_ONCE / np.prod(shape))


def _events(below: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probability or outcome of each event (low ranks, high ranks, ranks between) from those of being below each cut."""
    half = len(CUTS) // 2
    return np.concatenate((below[:half], 1 - below[half:], below[half : half + 1] - below[half - 1 : half]))


def _odds(chances: NDArray[np.float64], won: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the factor, 1 on average, by which each stake on each event multiplies the wealth at fair odds."""
    return 1 - STAKES + STAKES * won / chances


def drift_warning(groups: Sequence[Sequence[float]], seen: Sequence[tuple[float, int]]) -> str:
    """Return a warning if images, given as (score, class), differ as a whole from the calibration images; empty otherwise."""
    watch = DriftWatch(groups)
    # Shuffled, because folders are sorted by class, which is no drift.
    order = np.random.default_rng(0).permutation(len(seen))
    if not any(watch.observe([seen[place][0]], [seen[place][1]]).alarm for place in order):
        return ""
    return (
        "these images differ as a whole from the calibration images: some are out-of-distribution, or they come from another source,"
        f" for which the guarantee does not hold (this warning is false in at most {100 * LEVEL:g} of 100 cases)"
    )

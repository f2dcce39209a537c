"""Choose everything again with each network left out: what would have come of it, had that network never been looked at.

Without a network and its family are chosen, on real OOD images of the others:

- the parts of the fusion, among all sums of up to three methods at their defaults, each in standard deviations of its scores
  on ID validation images, and all that add a fourth to one of the best of these;
- the kinds of stand-ins, among all sets of up to four of ten kinds, by how they rank methods;
- how far a single method must lead the fusion on stand-ins before `auto` takes it;
- how much SCALE must gain on stand-ins before it is used, at the percentile that gains most there.

Each choice is the best by the sum of two things over the other networks: the mean, and the worst. Then it is measured on the
network that was left out. Choices rest on a part of each set's images, the final figures on all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logit
from scipy.stats import spearmanr
from torch import Tensor

from idness.selection.recommend import CLIP, HELPS, LEAD, pick

MOST, MOST_OOD = 700, 250
"""Images of a set that a choice rests on, evenly picked."""
WIDTH = 30
"""How many of the best sums are tried with one part more."""
COMPOSITE = ("fuse", "auto", "scale(auto)", "chain")
LEADS = (LEAD, 0.25, 0.5, 0.75, 1.5, 2.0, np.inf)
GAINS = (HELPS, 0.0, 0.05, 0.2, 0.3, 0.5)
"""Thresholds that compete; the first of equals is taken."""
Array = NDArray[np.float64]
Scores = Mapping[str, Tensor]
"""By set: val, test, the OOD sets, and for each kind of stand-in one that is called stand-in and its name."""


@dataclass
class Case:
    """Holds the scores of one network.

    Args:
        scores: of every row at its defaults.
        near: the names of the near sets.
        far: the names of the far sets.
        family: networks of one family are left out together.
        scales: scores of SCALE at each percentile.
    """

    scores: Mapping[str, Scores]
    near: Sequence[str]
    far: Sequence[str]
    family: str
    scales: Mapping[float, Scores] = field(default_factory=dict)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        return tuple(name for name in self.scores["ebo"] if name.startswith("stand-in "))

    def truth(self, parts: Iterable[Scores], *, whole: bool = False) -> float:
        """Give the mean of near and far AUROC of a sum of scores."""
        parts = list(parts)
        ids = np.sort(_sum(parts, "test", whole))
        groups = [[_auroc(ids, _sum(parts, name, whole)) for name in group] for group in (self.near, self.far)]
        return float(np.mean([np.mean(group) for group in groups]))

    def seen(self, parts: Iterable[Scores]) -> Array:
        """Give the logit AUROC of a sum of scores on each kind of stand-in: what may be looked at of any network."""
        parts = list(parts)
        ids = np.sort(_sum(parts, "val", whole=True))
        return logit(np.clip([_auroc(ids, _sum(parts, kind, whole=True)) for kind in self.kinds], *CLIP))


def left_out(networks: Mapping[str, Case]) -> dict[str, Any]:
    """Give, for each network, what was chosen without it and how that does on it; gains in AUROC."""
    shared = set.intersection(*(set(case.scores) for case in networks.values()))
    first = next(iter(networks.values()))
    kinds = first.kinds
    # Rows that are not scored on stand-ins, as those that look at an image twice, are not for `auto` to take.
    pool = sorted(row for row in shared if row not in COMPOSITE and set(kinds) <= set(first.scores[row]))
    chooser = Chooser(networks, pool, [set_ for n in (1, 2, 3, 4) for set_ in combinations(range(len(kinds)), n)])
    return {name: chooser.without(name) for name in networks}


class Chooser:
    """Holds what every candidate of every choice does on every network.

    Args:
        networks: scores by network.
        pool: the rows that compete.
        kinds: sets of kinds of stand-ins, by their numbers.
    """

    def __init__(self, networks: Mapping[str, Case], pool: Sequence[str], kinds: Sequence[tuple[int, ...]]) -> None:
        self.networks, self.pool, self.kinds = networks, pool, kinds
        self.fusions = [parts for count in (1, 2, 3) for parts in combinations(pool, count)]
        self.truths = {name: _truths(case, pool, self.fusions) for name, case in networks.items()}
        self.singles = {name: values[: len(pool)] for name, values in self.truths.items()}
        self.seen = {name: np.stack([case.seen([case.scores[row]]) for row in pool]) for name, case in networks.items()}
        self.order = {
            name: np.array([self._spearman(seen, self.singles[name], chosen) for chosen in kinds])
            for name, seen in self.seen.items()
        }

    def without(self, name: str) -> dict[str, Any]:
        """Choose everything on networks of other families, and measure it on this one."""
        case = self.networks[name]
        others = [other for other in self.networks if self.networks[other].family != case.family]
        parts = self._parts(others)
        kinds = self.kinds[_best([self.order[other] for other in others])]
        lead = LEADS[_best([self._leads(other, parts, kinds) for other in others])]
        gain = GAINS[_best([self._gains(other, kinds) for other in others])]
        took = self._takes(name, parts, kinds, lead)
        plain = case.truth([case.scores["ebo"]], whole=True)
        auto = case.truth([case.scores[row] for row in took], whole=True)
        best = max(case.truth([case.scores[row]], whole=True) for row in self.pool)
        percentile = self._percentile(name, kinds, gain)
        scaled = plain if percentile is None else case.truth([case.scales[percentile]], whole=True)
        return {
            "chosen on": others,
            "parts": list(parts),
            "kinds": [case.kinds[place].partition(" ")[2] for place in kinds],
            "lead": lead if np.isfinite(lead) else "any",
            "gain": gain,
            "spearman": round(self._spearman(self.seen[name], self.singles[name], kinds), 3),
            "auto": "+".join(took),
            "difference to ebo": round(auto - plain, 5),
            "difference to the best single": round(auto - best, 5),
            "percentile": percentile,
            "scale to ebo": round(scaled - plain, 5),
        }

    def _parts(self, others: Sequence[str]) -> tuple[str, ...]:
        """Choose the parts of a fusion on some networks: the best sum of up to three, or with one part more."""
        points = _points([self.truths[other] - self.singles[other].max() for other in others])
        best = np.argsort(-points)[:WIDTH]
        longer = sorted({tuple(sorted({*self.fusions[i], row})) for i in best for row in self.pool})
        found = [_truths(self.networks[other], self.pool, longer) - self.singles[other].max() for other in others]
        more = _points(found)
        return longer[int(more.argmax())] if more.max() > points.max() else self.fusions[best[0]]

    def _takes(self, name: str, parts: tuple[str, ...], kinds: tuple[int, ...], lead: float) -> tuple[str, ...]:
        """Name what `auto` takes on a network by stand-ins: the parts of the fusion, or one row."""
        case = self.networks[name]
        fused = float(case.seen([case.scores[row] for row in parts])[list(kinds)].mean())
        single = dict(zip(self.pool, self.seen[name][:, kinds].mean(axis=1), strict=True))
        row = pick(fused, single, lead)
        return parts if row == "fuse" else (row,)

    def _leads(self, name: str, parts: tuple[str, ...], kinds: tuple[int, ...]) -> Array:
        """Give what `auto` loses against the best single method, for each lead that competes."""
        case = self.networks[name]
        took = [self._takes(name, parts, kinds, lead) for lead in LEADS]
        values = {rows: case.truth([case.scores[row] for row in rows]) for rows in set(took)}
        return np.array([values[rows] for rows in took]) - self.singles[name].max()

    def _percentile(self, name: str, kinds: tuple[int, ...], gain: float) -> float | None:
        case = self.networks[name]
        plain = case.seen([case.scores["ebo"]])[list(kinds)].mean()
        gains = {p: float(case.seen([scores])[list(kinds)].mean() - plain) for p, scores in case.scales.items()}
        best = max(gains, key=lambda p: gains[p], default=None)
        return best if best is not None and gains[best] > gain else None

    def _gains(self, name: str, kinds: tuple[int, ...]) -> Array:
        """Give what SCALE gains over the energy score, for each threshold that competes."""
        case = self.networks[name]
        values = {p: case.truth([scores]) for p, scores in case.scales.items()}
        values[None] = plain = case.truth([case.scores["ebo"]])
        return np.array([values[self._percentile(name, kinds, gain)] - plain for gain in GAINS])

    @staticmethod
    def _spearman(seen: Array, truth: Array, kinds: tuple[int, ...]) -> float:
        return float(spearmanr(seen[:, list(kinds)].mean(axis=1), truth).statistic)


def _best(values: Sequence[Array]) -> int:
    return int(np.argmax(_points(values)))


def _points(values: Sequence[Array]) -> Array:
    """Judge candidates by their mean over networks and their worst; `values` has an array over candidates for each network."""
    table = np.stack(values)
    points: Array = table.mean(axis=0) + table.min(axis=0)
    return points


def _truths(case: Case, pool: Sequence[str], fusions: Sequence[tuple[str, ...]]) -> Array:
    """Compute the mean of near and far AUROC of every fusion on one network."""
    place = {row: column for column, row in enumerate(pool)}
    names = ("test", *case.near, *case.far)
    tables = {name: np.stack([_sum([case.scores[row]], name, False) for row in pool], axis=1) for name in names}
    found = []
    for parts in fusions:
        columns = [place[row] for row in parts]
        ids = np.sort(tables["test"][:, columns].sum(axis=1))
        groups = [[_auroc(ids, tables[name][:, columns].sum(axis=1)) for name in one] for one in (case.near, case.far)]
        found.append(np.mean([np.mean(group) for group in groups]))
    return np.array(found)


def _sum(parts: Sequence[Scores], name: str, whole: bool) -> Array:
    """Add up scores of a set's images, each in standard deviations of its validation scores."""
    total: Array = np.zeros(1)
    for scores in parts:
        val, values = (scores[key].double().numpy() for key in ("val", name))
        step = 1 if whole else max(1, len(values) // (MOST if name == "test" else MOST_OOD))
        total = total + (values[::step] - val.mean()) / max(float(val.std()), 1e-9)
    return total


def _auroc(sorted_ids: Array, oods: Array) -> float:
    """Give the share of pairs in which the ID image has the higher score; ties count half."""
    below = np.searchsorted(sorted_ids, oods, "left") + np.searchsorted(sorted_ids, oods, "right")
    return float(1 - below.mean() / (2 * len(sorted_ids)))

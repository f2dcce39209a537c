"""Choose a fusion again with each network left out: what would have come of it, had that network never been looked at.

All sums of up to three methods at their defaults compete, each in standard deviations of its scores on ID validation
images, on a part of each set's images. The best has the highest sum of two things over the networks that are left:
its mean distance to the best single method, and the worst one. Networks of one family are left out together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

MOST, MOST_OOD = 700, 250
"""Images of a set that a choice rests on, evenly picked."""
COMPOSITE = ("fuse", "auto", "scale(auto)", "chain")
Scored = tuple[Mapping[str, Mapping[str, Tensor]], Sequence[str], Sequence[str], str]
"""Of one network: scores by row and set, the near sets, the far sets, and its family."""
Array = NDArray[np.float64]


def left_out(networks: Mapping[str, Scored]) -> dict[str, Any]:
    """Give, for each network, what was chosen without it and how that does on it; gains and gaps in AUROC."""
    shared = set.intersection(*(set(scores) for scores, *_ in networks.values()))
    pool = sorted(row for row in shared if row not in COMPOSITE)
    candidates = [parts for count in (1, 2, 3) for parts in combinations(pool, count)]
    values = {name: _values(item, pool, candidates) for name, item in networks.items()}
    singles = {name: found[: len(pool)] for name, found in values.items()}
    found: dict[str, Any] = {}
    for name in networks:
        others = [other for other in networks if networks[other][3] != networks[name][3]]
        gaps = np.stack([values[other] - singles[other].max() for other in others])
        chosen = int(np.argmax(gaps.mean(axis=0) + gaps.min(axis=0)))
        found[name] = {
            "parts": list(candidates[chosen]),
            "chosen on": others,
            "difference to ebo": round(float(values[name][chosen] - singles[name][pool.index("ebo")]), 5),
            "difference to the best single": round(float(values[name][chosen] - singles[name].max()), 5),
        }
    return found


def _values(network: Scored, pool: Sequence[str], candidates: Sequence[tuple[str, ...]]) -> Array:
    """Compute the mean of near and far AUROC of every candidate on one network."""
    scores, near, far, _ = network
    tables = {name: _table(scores, pool, name) for name in ("test", *near, *far)}
    place = {row: column for column, row in enumerate(pool)}
    found = []
    for parts in candidates:
        columns = [place[row] for row in parts]
        ids = np.sort(tables["test"][:, columns].sum(axis=1))
        groups = [[_auroc(ids, tables[name][:, columns].sum(axis=1)) for name in group] for group in (near, far)]
        found.append(np.mean([np.mean(group) for group in groups]))
    return np.array(found)


def _table(scores: Mapping[str, Mapping[str, Tensor]], pool: Sequence[str], name: str) -> Array:
    """Put the scores of some images of a set side by side, each method in standard deviations of its validation scores."""
    columns = []
    for row in pool:
        val, values = scores[row]["val"].double().numpy(), scores[row][name].double().numpy()
        step = max(1, len(values) // (MOST if name == "test" else MOST_OOD))
        columns.append((values[::step] - val.mean()) / max(float(val.std()), 1e-9))
    return np.stack(columns, axis=1)


def _auroc(sorted_ids: Array, oods: Array) -> float:
    return float(1 - np.searchsorted(sorted_ids, oods).mean() / len(sorted_ids))

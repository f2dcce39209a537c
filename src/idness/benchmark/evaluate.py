"""Scores test sets shard by shard with every chosen detector, and makes metrics of the scores."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from idness.benchmark.parts import Metrics, Sweep, Wrong
from idness.core.files import sha256_of
from idness.core.types import Activations, Head
from idness.data import ActivationsSet
from idness.data.duplicates import DIGEST, EXACT
from idness.detectors.detector import Detector, Enhancer, fit_many, score_many
from idness.detectors.kernels import sharing
from idness.intervals import mean_auroc_interval, mean_fpr_interval, ranks
from idness.metrics import FPRS, NAMES, Array, all_metrics, auroc
from idness.selection.search import Choice

PERCENTILES = (0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 65.0, 70.0, 75.0, 80.0, 85.0, 90.0, 95.0, 99.0)
SWEPT = ("scale", "ash-s", "ash-p")
WORST = 8
"""How many of the most wrong images are kept per detector and group."""


@dataclass
class SetScores:
    """Keeps of a set what is needed after its activations have passed by: a few numbers per image."""

    scores: dict[str, Array] = field(default_factory=dict)
    swept: dict[tuple[str, float], Array] = field(default_factory=dict)
    index: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    predicted: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    labels: Array | None = None
    shaped_right: dict[str, int] = field(default_factory=dict)
    digests: Array = field(default_factory=lambda: np.zeros((0, DIGEST), np.uint8))
    skipped: list[tuple[int, str]] = field(default_factory=list)
    given_digest: str = ""

    @staticmethod
    def with_room(count: int, rows: Sequence[str], swept: Sequence[tuple[str, float]]) -> SetScores:
        """Make room for the scores of so many images."""
        return SetScores(
            scores={row: np.empty(count, np.float32) for row in rows},
            swept={key: np.empty(count, np.float32) for key in swept},
            index=np.empty(count, np.int64),
            predicted=np.empty(count, np.int64),
            digests=np.zeros((count, DIGEST), np.uint8),
        )

    @staticmethod
    def of_loaded(source: ActivationsSet) -> SetScores:
        """Return which images a set has, as it was loaded; no scores."""
        assert source.index is not None
        assert source.hashes is not None
        digests = np.zeros((len(source.index), DIGEST), np.uint8)
        digests[:, : source.hashes.shape[1]] = source.hashes.numpy()
        return SetScores(index=source.index.numpy(), digests=digests, skipped=source.skipped)

    def cut(self, count: int) -> SetScores:
        """Give back the room that was not needed."""
        self.scores = {row: values[:count] for row, values in self.scores.items()}
        self.swept = {key: values[:count] for key, values in self.swept.items()}
        self.index, self.predicted, self.digests = self.index[:count], self.predicted[:count], self.digests[:count]
        self.labels = None if self.labels is None else self.labels[:count]
        return self

    @property
    def sha256(self) -> str:
        """A hash of the images' contents in order; of the file, where activations were given."""
        return self.given_digest or sha256_of(self.digests[:, :EXACT].tobytes())

    @property
    def accuracy(self) -> float | None:
        """The plain network's accuracy, where labels are known."""
        return None if self.labels is None else float((self.labels == self.predicted).mean())

    def shaped_accuracy(self, row: str) -> float | None:
        """The accuracy of the network as this row edits it; the plain one's where it edits nothing."""
        return self.shaped_right[row] / len(self.index) if row in self.shaped_right else self.accuracy


class Scorer:
    """Scores shards with every chosen detector and those of the sweep, for the curves over percentiles; measures the time."""

    def __init__(
        self, choices: Mapping[str, Choice], sweep: Mapping[tuple[str, float], Detector] | None = None
    ) -> None:
        self.detectors = {row: choice.detector for row, choice in choices.items()}
        self.sweep = dict(sweep or {})
        self.seconds = dict.fromkeys(self.detectors, 0.0)

    def score(
        self, shards: Iterable[Activations], count: int, *, shaped: bool = False, sweep: bool = False
    ) -> SetScores:
        """Score a set of at most so many images, one shard in memory at a time.

        Where asked, it also counts how often the edited networks are right, and scores the sweep.
        """
        # All room is made before the first shard: small arrays that stay among large ones that go scatter the memory.
        found = SetScores.with_room(count, list(self.detectors), list(self.sweep) if sweep else [])
        labels: Array | None = np.empty(count, np.int64)
        place = 0
        for shard in shards:
            found.skipped += shard.skipped
            if not len(shard):
                continue
            assert shard.index is not None
            assert shard.hashes is not None
            span = slice(place, place + len(shard))
            place = span.stop
            self._score_shard(shard, found, span)
            if shaped and shard.labels is not None:
                self._count_right(shard, found.shaped_right)
            found.index[span] = shard.index.numpy()
            found.predicted[span] = shard.logits.argmax(dim=1).numpy()
            found.digests[span, : shard.hashes.shape[1]] = shard.hashes.numpy()
            if labels is None or shard.labels is None:
                labels = None
            else:
                labels[span] = shard.labels.numpy()
        found.labels = labels
        return found.cut(place)

    @sharing()
    def _score_shard(self, acts: Activations, found: SetScores, span: slice) -> None:
        for row, detector in self.detectors.items():
            start = time.perf_counter()
            found.scores[row][span] = _numpy(score_many([detector], acts)[0])
            self.seconds[row] += time.perf_counter() - start
        if found.swept:
            swept = score_many([self.sweep[key] for key in found.swept], acts)
            for key, scores in zip(found.swept, swept, strict=True):
                found.swept[key][span] = _numpy(scores)

    def _count_right(self, acts: Activations, counts: dict[str, int]) -> None:
        for row, detector in self.detectors.items():
            if isinstance(detector, Enhancer):
                assert acts.labels is not None
                right = detector.shaped_logits(acts).argmax(dim=1).cpu().eq(acts.labels)
                counts[row] = counts.get(row, 0) + int(right.sum())


def make_sweep(
    choices: Mapping[str, Choice], head: Head, train: Activations | None, val: Activations | None
) -> dict[tuple[str, float], Detector]:
    """Fit the detectors of the curves over percentiles, for the rows of the comparison that have one."""
    found: dict[tuple[str, float], Detector] = {}
    for row in SWEPT:
        if row in choices:
            variants = choices[row].detector.variants({"percentile": PERCENTILES})
            found |= {(row, percentile): variant for percentile, variant in zip(PERCENTILES, variants, strict=True)}
    fit_many(list(found.values()), head, train, val=val)
    return found


def evaluate(
    id_test: SetScores, groups: Mapping[str, Mapping[str, SetScores]], recall: float, seed: int
) -> dict[str, tuple[dict[str, Metrics], dict[str, Metrics]]]:
    """Compute for every row the metrics of each set and the means of each group."""
    results = {}
    for row, ids in id_test.scores.items():
        oods = {group: [found.scores[row] for found in sets.values()] for group, sets in groups.items()}
        by_set = {
            name: set_metrics(ids, scores, recall, seed)
            for group, sets in groups.items()
            for name, scores in zip(sets, oods[group], strict=True)
        }
        by_group = {
            group: group_metrics(ids, oods[group], [by_set[name] for name in sets], recall, seed)
            for group, sets in groups.items()
        }
        results[row] = (by_set, by_group)
    return results


def set_metrics(ids: Array, oods: Array, recall: float = 0.95, seed: int = 0) -> Metrics:
    """Compute the five metrics of one OOD set and the intervals of three of them."""
    return Metrics(**all_metrics(ids, oods, recall), intervals=_intervals(ids, [oods], recall, seed), marks={})


def group_metrics(
    ids: Array, oods: Sequence[Array], parts: Sequence[Metrics], recall: float = 0.95, seed: int = 0
) -> Metrics:
    """Average the metrics of a group's sets, whose scores are given too: the intervals are of the average."""
    means = {name: float(np.mean([getattr(part, name) for part in parts])) for name in NAMES}
    return Metrics(**means, intervals=_intervals(ids, oods, recall, seed), marks={})


def _intervals(ids: Array, oods: Sequence[Array], recall: float, seed: int) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {"auroc": mean_auroc_interval(ranks(ids, oods))}
    for convention in FPRS:
        interval = mean_fpr_interval(convention, ids, oods, recall, seed=seed)
        if interval is not None:
            found[convention] = interval
    return found


def sweep_curves(
    id_test: SetScores, groups: Mapping[str, Mapping[str, SetScores]], ebo: Mapping[str, Metrics] | None
) -> Sweep | None:
    """Compute the group AUROC at each percentile."""
    if not id_test.swept:
        return None
    curves: dict[str, dict[str, list[float]]] = {}
    for (row, percentile), ids in id_test.swept.items():
        for group, sets in groups.items():
            value = float(np.mean([auroc(ids, found.swept[row, percentile]) for found in sets.values()]))
            curves.setdefault(row, {}).setdefault(group, []).append(value)
    plain = {} if ebo is None else {group: metrics.auroc for group, metrics in ebo.items()}
    return Sweep(percentiles=list(PERCENTILES), auroc=curves, ebo=plain)


def most_wrong(row: str, name: str, found: SetScores, *, highest: bool, count: int = WORST) -> list[Wrong]:
    """List the images of a set that a row gets most wrong; their names are filled in by whoever has the set."""
    scores = found.scores[row]
    order = np.argsort(-scores if highest else scores, kind="stable")[:count]
    return [
        Wrong(
            set=name,
            index=int(found.index[place]),
            item="",
            score=float(scores[place]),
            label=None if found.labels is None else int(found.labels[place]),
            predicted=int(found.predicted[place]),
        )
        for place in order
    ]


def wrong_images(
    id_test: SetScores, groups: Mapping[str, Mapping[str, SetScores]]
) -> dict[str, dict[str, list[Wrong]]]:
    """List for every row the ID images of lowest score and, by group, the OOD images of highest score."""
    found: dict[str, dict[str, list[Wrong]]] = {}
    for row in id_test.scores:
        found[row] = {"id_test": most_wrong(row, "id_test", id_test, highest=False)}
        for group, sets in groups.items():
            listed = [entry for name, scores in sets.items() for entry in most_wrong(row, name, scores, highest=True)]
            found[row][group] = sorted(listed, key=lambda entry: -entry.score)[:WORST]
    return found


def _numpy(scores: Tensor) -> Array:
    return scores.detach().to("cpu", torch.float32).numpy()

"""Score sets shard by shard with every method, and compute metrics from the scores."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from idness.benchmark.results import Metrics, Sweep, Wrong
from idness.core.files import sha256_of
from idness.core.types import Activations, Head
from idness.data import ActivationsSet
from idness.data.duplicates import DIGEST, EXACT
from idness.detectors.detector import Detector, Enhancer, fit_many, score_many
from idness.detectors.kernels import sharing
from idness.intervals import mean_auroc_interval, mean_fpr_interval, ranks
from idness.metrics import FPRS, NAMES, SELECTIVE, Array, accepted_accuracy, all_metrics, aurc, auroc
from idness.selection.search import Choice

PERCENTILES = (0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 65.0, 70.0, 75.0, 80.0, 85.0, 90.0, 95.0, 99.0)
SWEPT = ("scale", "ash-s", "ash-p")
WORST = 8
"""Number of the most wrong images that are kept per method and group."""

Swept = tuple[str, float]
"""A method of the sweep and its percentile."""


@dataclass
class SetScores:
    """The scores of one set and what else is needed after its activations are gone: a few numbers per image."""

    scores: dict[str, Array]
    index: Array
    digests: Array
    swept: dict[Swept, Array] = field(default_factory=dict)
    predicted: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    labels: Array | None = None
    shaped_right: dict[str, int] = field(default_factory=dict)
    skipped: list[tuple[int, str]] = field(default_factory=list)
    given_digest: str = ""

    @staticmethod
    def of_loaded(source: ActivationsSet) -> SetScores:
        """Return the images of a set that was loaded before, without scores."""
        assert source.index is not None
        assert source.hashes is not None
        digests = np.zeros((len(source.index), DIGEST), np.uint8)
        digests[:, : source.hashes.shape[1]] = source.hashes.numpy()
        return SetScores({}, source.index.numpy(), digests, skipped=source.skipped)

    @property
    def sha256(self) -> str:
        """The hash of the images in order; of the file, if activations were given."""
        return self.given_digest or sha256_of(self.digests[:, :EXACT].tobytes())

    @property
    def accuracy(self) -> float | None:
        """The accuracy of the plain network; None without labels."""
        return None if self.labels is None else float((self.labels == self.predicted).mean())

    def shaped_accuracy(self, row: str) -> float | None:
        """The accuracy of the network as a method edits it; that of the plain network if it edits nothing."""
        return self.shaped_right[row] / len(self.index) if row in self.shaped_right else self.accuracy


class Scorer:
    """Scores shards with fitted methods and with the variants of the sweep, and measures the time of each method."""

    def __init__(self, choices: Mapping[str, Choice], sweep: Mapping[Swept, Detector] | None = None) -> None:
        self.detectors = {row: choice.detector for row, choice in choices.items()}
        self.sweep = dict(sweep or {})
        self.seconds = dict.fromkeys(self.detectors, 0.0)

    def score(
        self, shards: Iterable[Activations], count: int, *, shaped: bool = False, sweep: bool = False
    ) -> SetScores:
        """Score a set of at most `count` images, with one shard in memory at a time.

        Args:
            shards: activations with index and hashes.
            count: number of images.
            shaped: whether to count the correct predictions of edited networks.
            sweep: whether to score the variants of the sweep.
        """
        # All memory is allocated before the first shard, so that it is not fragmented.
        found = SetScores(
            scores={row: np.empty(count, np.float32) for row in self.detectors},
            swept={key: np.empty(count, np.float32) for key in self.sweep} if sweep else {},
            index=np.empty(count, np.int64),
            predicted=np.empty(count, np.int64),
            digests=np.zeros((count, DIGEST), np.uint8),
        )
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
        found.scores = {row: values[:place] for row, values in found.scores.items()}
        found.swept = {key: values[:place] for key, values in found.swept.items()}
        found.index, found.predicted, found.digests = (
            found.index[:place],
            found.predicted[:place],
            found.digests[:place],
        )
        found.labels = None if labels is None else labels[:place]
        return found

    @sharing()
    def _score_shard(self, acts: Activations, found: SetScores, span: slice) -> None:
        for row, detector in self.detectors.items():
            start = time.perf_counter()
            found.scores[row][span] = score_many([detector], acts)[0].detach().to("cpu", torch.float32).numpy()
            self.seconds[row] += time.perf_counter() - start
        if found.swept:
            swept = score_many([self.sweep[key] for key in found.swept], acts)
            for key, scores in zip(found.swept, swept, strict=True):
                found.swept[key][span] = scores.detach().to("cpu", torch.float32).numpy()

    def _count_right(self, acts: Activations, counts: dict[str, int]) -> None:
        for row, detector in self.detectors.items():
            if isinstance(detector, Enhancer):
                assert acts.labels is not None
                right = detector.shaped_logits(acts).argmax(dim=1).cpu().eq(acts.labels)
                counts[row] = counts.get(row, 0) + int(right.sum())


def make_sweep(
    choices: Mapping[str, Choice], head: Head, train: Activations | None, val: Activations | None
) -> dict[Swept, Detector]:
    """Fit the variants of the sweep over percentiles, for the methods of the benchmark that have one."""
    found: dict[Swept, Detector] = {}
    for row in SWEPT:
        if row in choices:
            variants = choices[row].detector.variants({"percentile": PERCENTILES})
            found |= {(row, percentile): variant for percentile, variant in zip(PERCENTILES, variants, strict=True)}
    fit_many(list(found.values()), head, train, val=val)
    return found


Groups = Mapping[str, Mapping[str, SetScores]]
"""The scores of OOD test sets by group and name."""


def evaluate(
    id_test: SetScores, groups: Groups, recall: float, seed: int
) -> dict[str, tuple[dict[str, Metrics], dict[str, Metrics]]]:
    """Return for every method the metrics of each set and the means of each group."""
    results = {}
    correct = None if id_test.labels is None else id_test.labels == id_test.predicted
    for row, ids in id_test.scores.items():
        by_set, by_group = dict[str, Metrics](), dict[str, Metrics]()
        for group, sets in groups.items():
            oods = {name: found.scores[row] for name, found in sets.items()}
            parts = {name: set_metrics(ids, scores, recall, seed, correct) for name, scores in oods.items()}
            by_set |= parts
            by_group[group] = group_metrics(ids, list(oods.values()), list(parts.values()), recall, seed)
        results[row] = (by_set, by_group)
    return results


def set_metrics(ids: Array, oods: Array, recall: float = 0.95, seed: int = 0, correct: Array | None = None) -> Metrics:
    """Return the metrics of one OOD set and the intervals of three of them; `correct` are the correct predictions, if known."""
    found = Metrics(**all_metrics(ids, oods, recall), intervals=_intervals(ids, [oods], recall, seed), marks={})
    if correct is not None:
        found.aurc = aurc(ids, correct, oods)
        found.accepted_accuracy = accepted_accuracy(ids, correct, oods, recall)
    return found


def group_metrics(
    ids: Array, oods: Sequence[Array], parts: Sequence[Metrics], recall: float = 0.95, seed: int = 0
) -> Metrics:
    """Return the means over the sets of a group, `parts`, with intervals of the means."""
    known = NAMES if parts[0].aurc is None else (*NAMES, *SELECTIVE)
    means = {name: float(np.mean([getattr(part, name) for part in parts])) for name in known}
    return Metrics(**means, intervals=_intervals(ids, oods, recall, seed), marks={})


def _intervals(ids: Array, oods: Sequence[Array], recall: float, seed: int) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {"auroc": mean_auroc_interval(ranks(ids, oods))}
    for convention in FPRS:
        interval = mean_fpr_interval(convention, ids, oods, recall, seed=seed)
        if interval is not None:
            found[convention] = interval
    return found


def sweep_curves(id_test: SetScores, groups: Groups, ebo: Mapping[str, Metrics] | None) -> Sweep | None:
    """Return the AUROC of each group at each percentile."""
    if not id_test.swept:
        return None
    curves: dict[str, dict[str, list[float]]] = {}
    for (row, percentile), ids in id_test.swept.items():
        for group, sets in groups.items():
            value = float(np.mean([auroc(ids, found.swept[row, percentile]) for found in sets.values()]))
            curves.setdefault(row, {}).setdefault(group, []).append(value)
    plain = {group: metrics.auroc for group, metrics in (ebo or {}).items()}
    return Sweep(percentiles=list(PERCENTILES), auroc=curves, ebo=plain)


def wrong_images(
    id_test: SetScores, groups: Groups, item: Callable[[str, int], str]
) -> dict[str, dict[str, list[Wrong]]]:
    """Return for every method the ID images with the lowest scores and, by group, the OOD images with the highest.

    `item` returns the name of an image by set and index.
    """

    def worst(row: str, name: str, found: SetScores, *, highest: bool) -> list[Wrong]:
        scores = found.scores[row]
        order = np.argsort(-scores if highest else scores, kind="stable")[:WORST]
        return [
            Wrong(
                set=name,
                index=int(found.index[place]),
                item=item(name, int(found.index[place])),
                score=float(scores[place]),
                label=None if found.labels is None else int(found.labels[place]),
                predicted=int(found.predicted[place]),
            )
            for place in order
        ]

    result: dict[str, dict[str, list[Wrong]]] = {}
    for row in id_test.scores:
        result[row] = {"id_test": worst(row, "id_test", id_test, highest=False)}
        for group, sets in groups.items():
            listed = [entry for name, scores in sets.items() for entry in worst(row, name, scores, highest=True)]
            result[row][group] = sorted(listed, key=lambda entry: -entry.score)[:WORST]
    return result

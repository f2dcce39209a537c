"""Score sets shard by shard with every method, and compute metrics from the scores."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch

from idness.benchmark.results import Metrics, Wrong
from idness.core.errors import DataError
from idness.core.types import Activations
from idness.data.activations import ActivationsSet
from idness.detectors.detector import Enhancer, score_many
from idness.detectors.kernels import sharing
from idness.intervals import Interval, Ranks, fpr_intervals, mean_auroc_interval, ranks
from idness.metrics import FPRS, Array, Convention, accepted_accuracy, all_metrics, aurc
from idness.selection.search import Choice

WORST = 8
"""Number of the most wrong images that are kept per method and group."""


@dataclass
class SetScores:
    """The scores of one set and what else is needed after its activations are gone: a few numbers per image."""

    source: ActivationsSet
    index: Array
    digests: Array
    scores: dict[str, Array] = field(default_factory=dict)
    predicted: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    labels: Array | None = None
    shaped_right: dict[str, int] = field(default_factory=dict)

    def item(self, index: int) -> str:
        """The name of an image."""
        return str(index) if self.source.images is None else self.source.images.item(index)

    @property
    def accuracy(self) -> float | None:
        """The accuracy of the plain network; None without labels."""
        return None if self.labels is None else float((self.labels == self.predicted).mean())


def score_set(source: ActivationsSet, choices: Mapping[str, Choice]) -> SetScores:
    """Score a set with fitted methods, one shard in memory at a time; of training images, only hashes are needed.

    For ID test images, the correct predictions of edited networks are counted.
    """
    if source.role == "id_train" and source.index is not None and source.hashes is not None:  # loaded before
        return SetScores(source, source.index.numpy(), source.hashes.numpy())
    parts, source.skipped = list[SetScores](), []
    for shard in source.shards():
        source.skipped += shard.skipped
        if len(shard):
            parts.append(_score_shard(source, shard, choices))
    if not parts:
        raise DataError(f"{source.name}: none of its images can be used; first reason: {source.skipped[0][1]}")
    joined = {each.name: _joined([getattr(part, each.name) for part in parts]) for each in fields(SetScores)[1:]}
    return SetScores(source, **joined)


@sharing()
def _score_shard(source: ActivationsSet, shard: Activations, choices: Mapping[str, Choice]) -> SetScores:
    scores, right = dict[str, Array](), dict[str, int]()
    for row, choice in choices.items():
        start = time.perf_counter()
        scores[row] = score_many([choice.detector], shard)[0].detach().float().cpu().numpy()
        choice.seconds["score"] = choice.seconds.get("score", 0.0) + time.perf_counter() - start
        if source.role == "id_test" and shard.labels is not None and isinstance(choice.detector, Enhancer):
            hits = choice.detector.shaped_logits(shard).argmax(dim=1).cpu().eq(shard.labels)
            right[row] = int(hits.sum())
    # Copies: a view would keep the shard in memory.
    columns = (shard.index, shard.hashes, shard.logits.argmax(dim=1))
    index, digests, predicted = (torch.as_tensor(part).numpy().copy() for part in columns)
    labels = None if shard.labels is None else shard.labels.numpy().copy()
    return SetScores(source, index, digests, scores, predicted, labels, right)


def _joined(parts: list[Any]) -> Any:
    """Join what several shards have: arrays, numbers, or dictionaries of them; None if one has none."""
    if isinstance(parts[0], dict):
        return {key: _joined([part[key] for part in parts]) for key in parts[0]}
    if isinstance(parts[0], int):
        return sum(parts)
    return None if any(part is None for part in parts) else np.concatenate(parts)


Groups = Mapping[str, Mapping[str, SetScores]]
"""The scores of OOD test sets by group and name."""


def evaluate(
    id_test: SetScores, groups: Groups, recall: float, seed: int
) -> dict[str, tuple[dict[str, Metrics], dict[str, Metrics]]]:
    """Return for every method the metrics of each set and the means of each group."""
    results = {}
    correct = None if id_test.labels is None else id_test.labels == id_test.predicted
    for row, scores in id_test.scores.items():
        by_set, by_group, order = dict[str, Metrics](), dict[str, Metrics](), np.argsort(scores)
        ids = scores[order]  # sorted once, as sorting again what is sorted is quick
        for group, sets in groups.items():
            oods = [np.sort(found.scores[row]) for found in sets.values()]
            values = [all_metrics(ids, ood, recall) for ood in oods]
            if correct is not None:
                for found, ood in zip(values, oods, strict=True):
                    found["aurc"] = aurc(ids, correct[order], ood)
                    found["accepted_accuracy"] = accepted_accuracy(ids, correct[order], ood, recall)
            drawn = {metric: fpr_intervals(metric, ids, oods, recall, seed=seed) for metric in FPRS}
            for place, (name, ood) in enumerate(zip(sets, oods, strict=True)):
                fprs = {metric: found[place] for metric, found in drawn.items()}
                by_set[name] = _metrics(ranks(ids, [ood]), values[place : place + 1], fprs)
            by_group[group] = _metrics(ranks(ids, oods), values, {metric: found[-1] for metric, found in drawn.items()})
        results[row] = (by_set, by_group)
    return results


def _metrics(
    order: Ranks, values: Sequence[Mapping[str, float]], fprs: Mapping[Convention, Interval | None]
) -> Metrics:
    """Return the means of the values of some OOD sets, and the intervals of three of them."""
    means = {name: float(np.mean([found[name] for found in values])) for name in values[0]}
    known: dict[str, tuple[float, float]] = {name: found for name, found in fprs.items() if found is not None}
    return Metrics(**means, intervals={"auroc": mean_auroc_interval(order), **known}, marks={})


def wrong_images(id_test: SetScores, groups: Groups) -> dict[str, dict[str, list[Wrong]]]:
    """Return for every method the ID images with the lowest scores and, by group, the OOD images with the highest."""

    def worst(row: str, sets: Mapping[str, SetScores], *, highest: bool) -> list[Wrong]:
        found = []
        for name, scored in sets.items():
            scores = scored.scores[row]
            for place in np.argsort(-scores if highest else scores, kind="stable")[:WORST]:
                index, label = int(scored.index[place]), None if scored.labels is None else int(scored.labels[place])
                score, predicted = float(scores[place]), int(scored.predicted[place])
                item = scored.item(index)
                found.append(Wrong(set=name, index=index, item=item, score=score, label=label, predicted=predicted))
        return sorted(found, key=lambda entry: entry.score, reverse=highest)[:WORST]

    return {
        row: {"id_test": worst(row, {"id_test": id_test}, highest=False)}
        | {group: worst(row, sets, highest=True) for group, sets in groups.items()}
        for row in id_test.scores
    }

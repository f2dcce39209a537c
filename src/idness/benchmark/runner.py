"""Runs a benchmark: one pass of the network over every image, then every method at every option from what is kept.

Methods that look at an image twice take passes of their own, and run only where they are named.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from idness.activations.extract import collect
from idness.benchmark.answer import conclude
from idness.benchmark.evaluate import Scorer, SetScores, evaluate, make_sweep, sweep_curves, wrong_images
from idness.benchmark.looks import Look, Looker
from idness.benchmark.parts import BenchmarkInfo, MethodResult, Metrics, SetInfo, Skipped, Trial
from idness.benchmark.prepare import Prepared, prepare
from idness.benchmark.protocol import GROUPS, Benchmark, OpenSet
from idness.benchmark.provenance import Known, duplicates, peak_memory, provenance, thumbnails, told
from idness.benchmark.ranking import without_interval
from idness.benchmark.results import Report
from idness.benchmark.settings import Settings
from idness.core.errors import DataError
from idness.core.progress import Listener, heard_warnings
from idness.core.types import Head
from idness.data import ImageSet
from idness.data.activations import in_memory
from idness.networks.class_names import check_accuracy
from idness.networks.open import Network
from idness.selection.recommend import MOST, Recommendation, learning_half, recommend_for
from idness.selection.search import Choice, Row, choose, wanted_rows

__all__ = ["Benchmark", "Settings", "run"]
NO_IMAGES = "these change the images and look again, and the benchmark has activations in place of images"


def run(
    benchmark: Benchmark | str | Path,
    model: str | nn.Module | None = None,
    settings: Settings | None = None,
    listener: Listener | None = None,
) -> Report:
    """Run a benchmark and report what every method reaches.

    Args:
        benchmark: one that ships with idness by name, a TOML file, or an object.
        model: the network, or how to load it; not needed where all sets are activations, nor for the embedded benchmark.
        settings: how to run it.
        listener: hears of progress.
    """
    bench = benchmark if isinstance(benchmark, Benchmark) else Benchmark.load(benchmark)
    job = _Job(bench, settings or Settings(), listener or Listener())
    with heard_warnings(job.warn):
        return job.run(model)


@dataclass
class _Scored:
    """Keeps the scores of every set, and which of them belong to which group."""

    every: dict[str, SetScores]
    groups: dict[str, dict[str, SetScores]]

    @property
    def id_test(self) -> SetScores:
        return self.every["id_test"]


class _Job:
    """Runs one benchmark once."""

    def __init__(self, bench: Benchmark, settings: Settings, listener: Listener) -> None:
        self.bench, self.settings, self.listener = bench, settings, listener
        self.warnings: list[str] = []
        self.time = dict.fromkeys(("extract", "fit", "search", "score", "total", "images", "cached"), 0.0)

    def run(self, model: str | nn.Module | None) -> Report:
        start = time.perf_counter()
        wanted = wanted_rows(self.settings.methods)  # a misspelt name is told before anything runs
        sets = self.bench.open(self.settings.data, partial=self.settings.partial)
        prepared = prepare(self.bench, sets, model, self.settings, self.listener)
        looker = Looker(prepared.network, prepared.head, sets, self.settings, self.listener)
        looks = looker.looks(wanted)
        self.time |= {"extract": looker.seconds, "images": looker.ran, "cached": looker.cached}
        choices, failed = self._choices(wanted, prepared.head, looks)
        advice = self._advice(prepared, sets, choices, looks[0])
        scored = self._scored(choices, prepared.head, looks)
        report = self._report(prepared, sets, choices, failed, scored, advice)
        self.time["total"] = time.perf_counter() - start
        report.time, report.warnings, report.peak_memory = self.time, self.warnings, peak_memory()
        return report

    def warn(self, text: str) -> None:
        # The same remark about other images of the same set is no news.
        if text.partition(", got")[0] not in [known.partition(", got")[0] for known in self.warnings]:
            self.warnings.append(text)
            self.listener.warn(text)

    def _choices(
        self, wanted: Mapping[str, Row], head: Head, looks: Sequence[Look]
    ) -> tuple[dict[str, Choice], dict[str, str]]:
        self.listener.phase("methods", len(wanted))
        choices: dict[str, Choice] = {}
        failed = {row: NO_IMAGES for row in wanted if not any(row in look.wanted for look in looks)}
        for look in looks:
            train, val = look.held.get("id_train"), look.held.get("id_val")
            ood_val = {name: look.held[name] for name in self.bench.ood_val if name in look.held}
            found, reasons = choose(look.wanted, head, train, val, ood_val, listener=self.listener)
            choices |= found
            failed |= reasons
        if not choices:
            raise DataError(
                f"benchmark {self.bench.name}: no method could be used; the first: {next(iter(failed.values()))}"
            )
        for step in ("fit", "search"):
            self.time[step] = sum(choice.seconds[step] for choice in choices.values())
        return choices, failed

    def _advice(
        self,
        prepared: Prepared,
        sets: Sequence[OpenSet],
        choices: Mapping[str, Choice],
        look: Look,
    ) -> Recommendation | None:
        """Return the recommendation for the ID images if there is no OOD validation set to choose by, else `None`."""
        ids = next((entry for role in ("id_val", "id_test") for entry in sets if entry.role == role), None)
        network = prepared.network
        if network is None or ids is None or any(choice.auroc is not None for choice in choices.values()):
            return None
        if isinstance(ids.data, ImageSet):
            source = next(source for source in look.sources if source.name == ids.name)
            acts = source.load(step=max(1, -(-len(ids.data) // (2 * MOST))))
            seen = in_memory("ID images", acts, ids.data, len(ids.data))
        else:
            seen = collect(network, ids.data, name="ID images", limit=2 * MOST, listener=self.listener)
        part, _ = learning_half(seen)
        if len(part.acts) < 2:
            return None
        return recommend_for(network, part, learn=look.held.get("id_train"), listener=self.listener)

    def _scored(self, choices: Mapping[str, Choice], head: Head, looks: Sequence[Look]) -> _Scored:
        """Score every set but the training images, of which only the hashes are needed."""
        start, first = time.perf_counter(), looks[0]
        sweep = make_sweep(choices, head, first.held.get("id_train"), first.held.get("id_val"))
        for look in looks:
            look.held.clear()  # what the methods need of it they have kept
        self.listener.phase("scores", sum(len(look.sources) for look in looks))
        every: dict[str, SetScores] = {}
        for look in looks:
            rows = {row: choice for row, choice in choices.items() if row in look.wanted}
            scorer = Scorer(rows, sweep if look is first else None)
            for source in look.sources:
                tested = source.role in ("id_test", *GROUPS)
                if source.role == "id_train":
                    found = SetScores.of_loaded(source)
                else:
                    found = scorer.score(source.shards(), source.count, shaped=source.role == "id_test", sweep=tested)
                if not len(found.index):
                    raise DataError(f"{source.name}: none of its images can be used; the first: {found.skipped[0][1]}")
                found.given_digest = source.sha256
                # Later looks are at the same images: they add their scores, and else the same.
                every.setdefault(source.name, found).scores |= found.scores
                self.listener.advance(1)
            for row, seconds in scorer.seconds.items():
                choices[row].seconds["score"] = seconds
        self.time["score"] = time.perf_counter() - start
        sources = first.sources
        groups = {
            role: {source.name: every[source.name] for source in sources if source.role == role} for role in GROUPS
        }
        return _Scored(every, {role: found for role, found in groups.items() if found})

    def _report(
        self,
        prepared: Prepared,
        sets: Sequence[OpenSet],
        choices: Mapping[str, Choice],
        failed: dict[str, str],
        scored: _Scored,
        advice: Recommendation | None,
    ) -> Report:
        start = time.perf_counter()
        opened = {entry.name: entry for entry in sets}
        metrics = evaluate(scored.id_test, scored.groups, self.settings.recall, self.settings.seed)
        methods = {
            row: _method_result(choice, scored.id_test.shaped_accuracy(row), *metrics[row])
            for row, choice in choices.items()
        }
        wrong = wrong_images(scored.id_test, scored.groups)
        for entry in (entry for parts in wrong.values() for listed in parts.values() for entry in listed):
            entry.item = _item(opened[entry.set], entry.index)
        groups = {role: list(found) for role, found in scored.groups.items()}
        network = prepared.network
        self._check_accuracy(scored.id_test, prepared.info.classes)
        report = Report(
            benchmark=BenchmarkInfo(
                name=self.bench.name,
                title=self.bench.title,
                classes=_classes(self.bench, opened, network),
                groups=groups,
            ),
            model=prepared.info,
            preprocessing={} if network is None or network.how is None else network.how.to_dict(),
            precision=asdict(prepared.precision),
            engine={} if network is None or network.engine is None else asdict(network.engine),
            sets={name: _set_info(opened[name], found) for name, found in scored.every.items()},
            id_accuracy=scored.id_test.accuracy,
            methods=methods,
            recall=self.settings.recall,
            failed=failed,
            advised="" if advice is None else advice.row,
            advised_why="" if advice is None else advice.why,
            sweep=sweep_curves(scored.id_test, scored.groups, methods["ebo"].groups if "ebo" in methods else None),
            wrong=wrong,
            duplicates=duplicates(
                {
                    name: Known(opened[name].role, opened[name].data, found.digests, found.index)
                    for name, found in scored.every.items()
                }
            ),
            provenance=provenance(self.settings.command, self.settings.seed),
        )
        report.attach(_arrays(scored.every), thumbnails(wrong, {name: entry.data for name, entry in opened.items()}))
        conclude(report)
        self._tell(report)
        self.time["score"] += time.perf_counter() - start
        return report

    def _check_accuracy(self, found: SetScores, classes: int) -> None:
        """Stop if accuracy is at chance level, unless any accuracy is accepted: the scores would mean nothing."""
        if found.labels is not None:
            text = check_accuracy(
                "id_test", found.labels, found.predicted, classes, any_accuracy=self.settings.any_accuracy
            )
            if text:
                self.warn(text)

    def _tell(self, report: Report) -> None:
        for found in report.duplicates:
            self.warn(told(found))
        for sentence in without_interval(report):
            self.warn(sentence)
        for row, method in report.methods.items():
            if method.degenerate:
                self.warn(
                    f"{row}: gives nearly all images one and the same score; it says nothing here and is never the best"
                )
        for name, info in report.sets.items():
            if info.skipped:
                self.warn(
                    f"{name}: {len(info.skipped)} images were skipped; the first, {info.skipped[0].item}: {info.skipped[0].reason}"
                )


def _method_result(
    choice: Choice, shaped: float | None, by_set: dict[str, Metrics], by_group: dict[str, Metrics]
) -> MethodResult:
    detector = choice.detector
    return MethodResult(
        method=detector.name,
        label=detector.label(),
        about=detector.summary(),
        options=detector.options(),
        chosen_by=choice.chosen_by,
        validation_auroc=choice.auroc,
        tried=[Trial(options=options, auroc=value) for options, value in choice.tried],
        dropped=choice.dropped,
        id_accuracy_shaped=shaped,
        seconds=choice.seconds,
        sets=by_set,
        groups=by_group,
    )


def _set_info(entry: OpenSet, found: SetScores) -> SetInfo:
    skipped = [Skipped(item=_item(entry, place), reason=reason) for place, reason in found.skipped]
    return SetInfo(
        role=entry.role, images=len(found.index), source=entry.data.source, sha256=found.sha256, skipped=skipped
    )


def _item(entry: OpenSet, index: int) -> str:
    return entry.data.item(index) if isinstance(entry.data, ImageSet) else str(index)


def _classes(bench: Benchmark, opened: Mapping[str, OpenSet], network: Network | None) -> list[str]:
    if network is not None and network.class_names is not None:
        return list(network.class_names)
    data = opened["id_test"].data
    return list(bench.class_names or (data.classes if isinstance(data, ImageSet) else ()))


def _arrays(every: Mapping[str, SetScores]) -> dict[str, NDArray[Any]]:
    """Name the arrays of the scores file."""
    arrays: dict[str, NDArray[Any]] = {}
    for name, found in every.items():
        if name == "id_train":
            continue
        arrays |= {f"scores/{row}/{name}": scores for row, scores in found.scores.items()}
        arrays |= {f"index/{name}": found.index, f"predicted/{name}": found.predicted}
        if found.labels is not None:
            arrays[f"labels/{name}"] = found.labels
    return {name: np.asarray(array) for name, array in arrays.items()}

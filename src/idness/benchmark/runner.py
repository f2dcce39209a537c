"""Run a benchmark: one pass of the network over every image, then every method with every option on its activations.

Methods that edit images need more passes, and run only if they are named.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from idness.benchmark.answer import conclude, without_interval
from idness.benchmark.evaluate import Scorer, SetScores, evaluate, make_sweep, sweep_curves, wrong_images
from idness.benchmark.extraction import Pass, benchmark_network, run_passes
from idness.benchmark.protocol import GROUPS, Benchmark, Settings
from idness.benchmark.results import (
    BenchmarkInfo,
    MethodResult,
    ModelInfo,
    Report,
    SetInfo,
    Skipped,
    Trial,
    describe_duplicates,
)
from idness.core.errors import DataError
from idness.core.progress import Progress, report_warnings
from idness.core.text import abridged, shorten
from idness.core.types import Head
from idness.data.activations import in_memory
from idness.data.decoding import decoder_version
from idness.data.duplicates import common, near, within
from idness.data.preprocess import thumbnail
from idness.networks.open import Network, check_accuracy
from idness.selection.recommend import MOST, Recommendation, learning_half, recommend_for
from idness.selection.search import Choice, Row, choose, wanted_rows

NO_IMAGES = "edits the images, and the benchmark has activations instead of images"
GIVEN = {"asked": "fp32", "used": "fp32", "why": "activations were given"}
SHOWN = 128
"""Longest side of the images in a report, in pixels."""


def run(
    benchmark: Benchmark | str | Path,
    model: str | nn.Module | None = None,
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> Report:
    """Run a benchmark and return the results of every method.

    Args:
        benchmark: the name of a benchmark of idness, a TOML file, or a `Benchmark`.
        model: the network or its name; not needed for embedded benchmarks, or if all sets are activations.
        settings: the options of the run.
        progress: progress callback.

    Example:
        >>> report = run("cifar6", settings=Settings(methods=["msp"]))
        >>> 0.8 < report.methods["msp"].groups["far"].auroc < 0.9
        True
    """
    bench = benchmark if isinstance(benchmark, Benchmark) else Benchmark.load(benchmark)
    job = _Run(bench, settings or Settings(), progress or Progress())
    with report_warnings(job.warn):
        return job.run(model)


class _Run:
    """One run of a benchmark."""

    def __init__(self, bench: Benchmark, settings: Settings, progress: Progress) -> None:
        self.bench, self.settings, self.progress = bench, settings, progress
        self.warnings: list[str] = []
        self.time = dict.fromkeys(("extract", "fit", "search", "score", "total", "images", "cached"), 0.0)

    def run(self, model: str | nn.Module | None) -> Report:
        start = time.perf_counter()
        wanted = wanted_rows(self.settings.methods)  # first, so that a misspelt name fails at once
        sets = self.bench.open(self.settings.data, partial=self.settings.partial)
        head, network, info = benchmark_network(self.bench, sets, model, self.settings, self.progress)
        passes, counts = run_passes(network, sets, wanted, self.settings, self.progress)
        self.time |= counts
        choices, failed = self._choices(wanted, head, passes)
        advice = None if network is None else self._advice(network, choices, passes[0])
        scored = self._scores(choices, head, passes)
        report = self._report(network, info, choices, scored, {entry.name: entry.data.source for entry in sets})
        report.failed = failed
        if advice is not None:
            report.advised, report.advised_why = advice.row, advice.why
        conclude(report)
        self._warn_of_results(report)
        report.warnings, report.time = self.warnings, self.time
        self.time["total"] = time.perf_counter() - start
        report.peak_memory = peak_memory()
        return report

    def warn(self, text: str) -> None:
        # Warnings that differ only in the value are given once.
        if text.partition(", got")[0] not in [known.partition(", got")[0] for known in self.warnings]:
            self.warnings.append(text)
            self.progress.warn(text)

    def _choices(
        self, wanted: Mapping[str, Row], head: Head, passes: Sequence[Pass]
    ) -> tuple[dict[str, Choice], dict[str, str]]:
        """Fit the methods and choose their options; return them, and the reasons why others could not be used."""
        self.progress.phase("methods", len(wanted))
        choices: dict[str, Choice] = {}
        failed = {row: NO_IMAGES for row in wanted if not any(row in each.rows for each in passes)}
        for each in passes:
            acts = each.fitted_on
            ood_val = {name: acts[name] for name in self.bench.ood_val if name in acts}
            train, val = acts.get("id_train"), acts.get("id_val")
            found, reasons = choose(each.rows, head, train, val, ood_val, progress=self.progress)
            choices |= found
            failed |= reasons
        if not choices:
            [first, *_] = failed.values()
            raise DataError(f"benchmark {self.bench.name}: no method could be used; first reason: {first}")
        for step in ("fit", "search"):
            self.time[step] = sum(choice.seconds[step] for choice in choices.values())
        return choices, failed

    def _advice(self, network: Network, choices: Mapping[str, Choice], plain: Pass) -> Recommendation | None:
        """Return the recommendation of `doctor` and `calibrate` for the same images.

        None if validation data decides between the methods that were named, which `doctor` and `calibrate` do not know.
        """
        validated = any(choice.auroc is not None for choice in choices.values())
        if validated and self.settings.methods:
            return None
        source = next(source for source in plain.sets if source.role in ("id_val", "id_test"))  # in this order
        acts = plain.fitted_on.get(source.name) or source.load(step=-(-source.count // (2 * MOST)))
        ids = in_memory("ID images", acts, source.images, source.count)
        part, _ = learning_half(ids)
        if len(part.acts) < 2:
            return None
        learn = plain.fitted_on.get("id_train")
        ood = {name: plain.fitted_on[name] for name in self.bench.ood_val if name in plain.fitted_on and validated}
        return recommend_for(network, part, learn=learn, ood=ood, progress=self.progress)

    def _scores(self, choices: Mapping[str, Choice], head: Head, passes: Sequence[Pass]) -> dict[str, SetScores]:
        """Score every set but the training images, of which only the hashes are needed."""
        start, first = time.perf_counter(), passes[0]
        sweep = make_sweep(choices, head, first.fitted_on.get("id_train"), first.fitted_on.get("id_val"))
        for each in passes:
            each.fitted_on.clear()  # the methods are fitted
        self.progress.phase("scores", sum(len(each.sets) for each in passes))
        scored: dict[str, SetScores] = {}
        for each in passes:
            own = {row: choice for row, choice in choices.items() if row in each.rows}
            scorer = Scorer(own, sweep if each is first else None)
            for source in each.sets:
                found = scorer.score(source)
                scored.setdefault(source.name, found).scores |= found.scores  # later passes add their scores
                self.progress.advance(1)
        self.time["score"] = time.perf_counter() - start
        return scored

    def _report(
        self,
        network: Network | None,
        info: ModelInfo,
        choices: Mapping[str, Choice],
        scored: Mapping[str, SetScores],
        sources: Mapping[str, str],
    ) -> Report:
        start, id_test = time.perf_counter(), scored["id_test"]
        if id_test.labels is not None:  # at chance level, the scores would be meaningless
            any_accuracy = self.settings.any_accuracy
            text = check_accuracy("id_test", id_test.labels, id_test.predicted, info.classes, any_accuracy=any_accuracy)
            if text:
                self.warn(text)
        by_role = {role: {name: found for name, found in scored.items() if found.role == role} for role in GROUPS}
        groups = {role: found for role, found in by_role.items() if found}
        metrics = evaluate(id_test, groups, self.settings.recall, self.settings.seed)
        methods = {
            row: MethodResult(
                method=choice.detector.name,
                label=choice.detector.label(),
                about=choice.detector.summary(),
                options=choice.detector.options(),
                chosen_by=choice.chosen_by,
                validation_auroc=choice.auroc,
                tried=[Trial(options=options, auroc=value) for options, value in choice.tried],
                dropped=choice.dropped,
                id_accuracy_shaped=id_test.shaped_accuracy(row),
                seconds=choice.seconds,
                sets=metrics[row][0],
                groups=metrics[row][1],
            )
            for row, choice in choices.items()
        }
        engine = None if network is None else network.engine
        shown = None if network is None else network.class_names
        report = Report(
            benchmark=BenchmarkInfo(
                name=self.bench.name,
                title=self.bench.title,
                classes=list(shown or self.bench.class_names or (id_test.images.classes if id_test.images else ())),
                groups={role: list(found) for role, found in groups.items()},
            ),
            model=info,
            preprocessing={} if network is None or network.how is None else network.how.to_dict(),
            precision=GIVEN if network is None else asdict(network.precision),
            engine={} if engine is None else asdict(engine),
            sets={
                name: SetInfo(
                    role=found.role,
                    images=len(found.index),
                    source=sources[name],
                    sha256=found.sha256,
                    skipped=[Skipped(item=found.item(place), reason=reason) for place, reason in found.skipped],
                )
                for name, found in scored.items()
            },
            id_accuracy=id_test.accuracy,
            methods=methods,
            recall=self.settings.recall,
            sweep=sweep_curves(id_test, groups, methods["ebo"].groups if "ebo" in methods else {}),
            wrong=wrong_images(id_test, groups),
            duplicates=duplicates(scored),
            provenance=provenance(self.settings.command, self.settings.seed),
        )
        arrays: dict[str, Any] = {}
        for name, found in scored.items():
            if name != "id_train":
                arrays |= {f"scores/{row}/{name}": scores for row, scores in found.scores.items()}
                arrays |= {f"index/{name}": found.index, f"predicted/{name}": found.predicted}
                arrays |= {} if found.labels is None else {f"labels/{name}": found.labels}
        report.attach(arrays, _thumbnails(report, scored))
        self.time["score"] += time.perf_counter() - start
        return report

    def _warn_of_results(self, report: Report) -> None:
        for text in [*describe_duplicates(report.duplicates), *without_interval(report)]:
            self.warn(text)
        for row, method in report.methods.items():
            if method.degenerate:
                self.warn(f"{row}: nearly all images have the same score, so it is never the best method")
        for name in (name for sets in report.benchmark.groups.values() for name in sets):
            found = {row: method.sets[name].intervals["auroc"][1] for row, method in report.methods.items()}
            below = [row for row, high in found.items() if high < 0.5]
            if below:
                named = abridged([shorten(row) for row in below])
                self.warn(f"{shorten(name)}: AUROC below 50 % with {named}: OOD images score above ID images")
        for name, info in report.sets.items():
            if info.skipped:
                first = info.skipped[0]
                self.warn(f"{name}: {len(info.skipped)} images were skipped; first: {first.item}: {first.reason}")


def _thumbnails(report: Report, scored: Mapping[str, SetScores]) -> dict[str, NDArray[np.uint8]]:
    """Return thumbnails of the images that methods get most wrong, by `set/index`."""
    wrong = (entry for parts in report.wrong.values() for entries in parts.values() for entry in entries)
    found: dict[str, NDArray[np.uint8]] = {}
    for name, index in sorted({(entry.set, entry.index) for entry in wrong}):
        images = scored[name].images
        if images is not None:
            with suppress(DataError):  # deleted since it was scored
                found[f"{name}/{index}"] = np.array(thumbnail(images.picture(index), SHOWN))
    return found


def duplicates(scored: Mapping[str, SetScores]) -> list[dict[str, Any]]:
    """Count repeated images and near-duplicates, within a test set or where they must not be.

    An ID and an OOD set must not share images, nor a test set and one that is not for testing.
    """
    tested, found = ("id_test", *GROUPS), list[dict[str, Any]]()
    for name, one in scored.items():
        if one.role in tested and one.images is not None:
            same, alike = within(one.digests, one.images, one.index)
            found += [{"sets": [name], "images": same, "near": alike}] if same or alike else []
    for (first, one), (second, other) in combinations(scored.items(), 2):
        same_kind = one.role.startswith("id_") == other.role.startswith("id_")
        if same_kind and (one.role in tested) == (other.role in tested):
            continue
        same, alike = common(one.digests, other.digests), 0
        if one.images is not None and other.images is not None:
            alike = near(one.digests, other.digests, (one.images, other.images), (one.index, other.index))
        if same or alike:
            found.append({"sets": [first, second], "images": same, "near": alike})
    return found


def provenance(command: str, seed: int) -> dict[str, Any]:
    """Return versions, machine, time, seed and command."""
    versions = {"python": platform.python_version(), "decoder": decoder_version()}
    for name in ("idness", "torch", "torchvision", "timm", "numpy"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "command": command,
        "seed": seed,
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "versions": versions,
        "machine": {"cpu": platform.machine(), "cores": os.cpu_count() or 0, "threads": torch.get_num_threads()},
    }


def peak_memory() -> int:
    """Return the peak memory of this process in bytes; 0 if the system does not report it."""
    status = Path("/proc/self/status")
    if status.is_file():  # on Linux, getrusage starts with the memory of the parent process
        return 1024 * int(status.read_text().partition("VmHWM:")[2].split()[0])
    try:
        import resource
    except ImportError:  # Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

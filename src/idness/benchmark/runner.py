"""Running of a benchmark: one pass of the network over every image, then every method with every setting on the activations.

Methods that edit images need further passes, and run only if they are named.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
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
from idness.benchmark.evaluate import SetScores, evaluate, score_set, wrong_images
from idness.benchmark.extraction import Pass, benchmark_network, run_passes
from idness.benchmark.protocol import GROUPS, Benchmark, Settings
from idness.benchmark.results import BenchmarkInfo, MethodResult, ModelInfo, Report, SetInfo, describe_duplicates
from idness.core.errors import DataError
from idness.core.files import sha256_of
from idness.core.progress import Progress, report_warnings
from idness.core.text import abridged, shorten
from idness.core.types import Activations, Head
from idness.data.activations import ActivationsSet, in_memory
from idness.data.decoding import decoder_version
from idness.data.duplicates import EXACT, common, near, within
from idness.data.preprocess import thumbnail
from idness.networks.open import Network, check_accuracy
from idness.selection.recommend import MOST, learning_half, recommend_for, searched_alike
from idness.selection.search import Choice, Row, choose, wanted_rows

NO_IMAGES = "edits images, but the benchmark has activations instead of images"
GIVEN = {"asked": "fp32", "used": "fp32", "why": "activations were given"}
SHOWN = 128
"""Maximum side of the images in a report, in pixels."""


def run(
    benchmark: Benchmark | str | Path,
    model: str | nn.Module | None = None,
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> Report:
    """Run a benchmark and return the results of every method.

    Args:
        benchmark: the name of a built-in benchmark, a TOML file, or a `Benchmark`.
        model: the network or its name; not needed for embedded benchmarks, or if all sets are activations.
        settings: the options of the run.
        progress: progress callback.

    Example:
        >>> report = run("cifar6", settings=Settings(methods=["msp"]))
        >>> 0.8 < report.methods["msp"].groups["far"].auroc < 0.9
        True
    """
    bench = benchmark if isinstance(benchmark, Benchmark) else Benchmark.load(benchmark)
    asked, shown, start = settings or Settings(), progress or Progress(), time.perf_counter()
    warned: dict[str, str] = {}

    def warn(text: str) -> None:
        kind = text.partition(", got")[0]  # warnings that differ only in a value are issued once
        if kind not in warned:
            warned[kind] = text
            shown.warn(text)

    with report_warnings(warn):
        wanted = wanted_rows(asked.methods)  # first, so that a misspelt name fails immediately
        sets = bench.open(asked.data, partial=asked.partial)
        head, network, info = benchmark_network(bench, sets, model, asked, shown)
        passes, spent = run_passes(network, sets, wanted, asked, shown)
        part = None if network is None else _advised_part(passes[0])
        alike = part is not None and not asked.methods and searched_alike(passes[0].train, passes[0].ood_val)
        choices, failed = _choices(wanted, head, passes, shown, half=part.acts if part is not None and alike else None)
        if not choices:
            raise DataError(f"benchmark {bench.name}: no method can be used: {next(iter(failed.values()))}")
        validated, advice = any(choice.auroc is not None for choice in choices.values()), None
        # If validation data decides between named methods, doctor and calibrate may not know these.
        if network is not None and part is not None and not (validated and asked.methods):
            ood = passes[0].ood_val if validated else {}
            searched = {name: choice.on_half for name, choice in choices.items()} if alike else None
            advice = recommend_for(network, part, learn=passes[0].train, ood=ood, searched=searched, progress=shown)
        scoring = time.perf_counter()
        scored = _scores(choices, passes, shown)
        test = scored["id_test"]
        if test.labels is not None:  # at chance level, the scores would be meaningless
            compared = (test.labels, test.predicted, info.classes)
            if text := check_accuracy("id_test", *compared, any_accuracy=asked.any_accuracy):
                warn(text)
        sources = {entry.name: entry.data.source for entry in sets}
        report = _report(bench, asked, network, info, choices, scored, sources)
        report.failed = failed
        for step in ("fit", "search"):
            spent[step] = sum(choice.seconds[step] for choice in choices.values())
        spent["score"] = time.perf_counter() - scoring
        if advice is not None:
            report.advised, report.advised_why = advice.row, advice.why
        conclude(report)
        for text in _cautions(report):
            warn(text)
    report.warnings, report.peak_memory = list(warned.values()), peak_memory()
    report.time = spent | {"total": time.perf_counter() - start}
    return report


def _choices(
    wanted: Mapping[str, Row], head: Head, passes: Sequence[Pass], progress: Progress, *, half: Activations | None
) -> tuple[dict[str, Choice], dict[str, str]]:
    """Fit the methods and choose their options; return them, and the reasons why others cannot be used."""
    progress.phase("methods", len(wanted))
    choices: dict[str, Choice] = {}
    failed = {row: NO_IMAGES for row in wanted if not any(row in each.rows for each in passes)}
    for each in passes:
        found, reasons = choose(each.rows, head, each.train, each.val, each.ood_val, half=half, progress=progress)
        choices |= found
        failed |= reasons
    return choices, failed


def _advised_part(plain: Pass) -> ActivationsSet | None:
    """Return the ID images on which `doctor` and `calibrate` would compare methods; `None` if there are too few."""
    source = next(source for source in plain.sets if source.role in ("id_val", "id_test"))  # in this order
    acts = plain.val or source.load(step=-(-source.count // (2 * MOST)))
    part, _ = learning_half(in_memory("ID images", acts, source.images, source.count))
    return None if len(part.acts) < 2 else part


def _scores(choices: Mapping[str, Choice], passes: Sequence[Pass], progress: Progress) -> dict[str, SetScores]:
    """Return the scores of every set; of training images, only the hashes are needed."""
    for each in passes:
        each.train, each.val, each.ood_val = None, None, {}  # the methods are fitted
    progress.phase("scores", sum(len(each.sets) for each in passes))
    scored: dict[str, SetScores] = {}
    for each in passes:
        own = {row: choice for row, choice in choices.items() if row in each.rows}
        for source in each.sets:
            found = score_set(source, own)
            scored.setdefault(source.name, found).scores |= found.scores  # later passes add their scores
            progress.advance(1)
    return scored


def _report(
    bench: Benchmark,
    settings: Settings,
    network: Network | None,
    info: ModelInfo,
    choices: Mapping[str, Choice],
    scored: Mapping[str, SetScores],
    sources: Mapping[str, str],
) -> Report:
    id_test = scored["id_test"]
    by_role = {role: {name: found for name, found in scored.items() if found.source.role == role} for role in GROUPS}
    groups = {role: found for role, found in by_role.items() if found}
    metrics, shaped_right = evaluate(id_test, groups, settings.recall, settings.seed), id_test.shaped_right
    methods = {
        row: MethodResult(
            method=choice.detector.name,
            label=choice.detector.label(),
            about=choice.detector.summary(),
            options=choice.detector.options(),
            chosen_by=choice.chosen_by,
            validation_auroc=choice.auroc,
            tried=[{"options": options, "auroc": value} for options, value in choice.tried],
            dropped=choice.dropped,
            id_accuracy_shaped=shaped_right[row] / len(id_test.index) if row in shaped_right else id_test.accuracy,
            seconds=choice.seconds,
            sets=metrics[row][0],
            groups=metrics[row][1],
        )
        for row, choice in choices.items()
    }
    images = id_test.source.images
    classes = (network and network.class_names) or bench.class_names or (images.classes if images else ())
    report = Report(
        benchmark=BenchmarkInfo(
            name=bench.name,
            title=bench.title,
            classes=list(classes),
            groups={role: list(found) for role, found in groups.items()},
        ),
        model=info,
        preprocessing={} if network is None or network.how is None else network.how.to_dict(),
        precision=GIVEN if network is None else asdict(network.precision),
        engine={} if network is None or network.engine is None else asdict(network.engine),
        sets={
            name: SetInfo(
                role=found.source.role,
                images=len(found.index),
                source=sources[name],
                sha256=found.source.sha256 or sha256_of(found.digests[:, :EXACT].tobytes()),
                skipped=[{"item": found.item(place), "reason": reason} for place, reason in found.source.skipped],
            )
            for name, found in scored.items()
        },
        id_accuracy=id_test.accuracy,
        methods=methods,
        recall=settings.recall,
        wrong=wrong_images(id_test, groups),
        duplicates=duplicates(scored),
        provenance=provenance(settings.command, settings.seed),
    )
    arrays: dict[str, Any] = {}
    for name, found in scored.items():
        if name != "id_train":
            arrays |= {f"scores/{row}/{name}": scores for row, scores in found.scores.items()}
            arrays |= {f"index/{name}": found.index, f"predicted/{name}": found.predicted}
            arrays |= {} if found.labels is None else {f"labels/{name}": found.labels}
    report.attach(arrays, _thumbnails(report, scored))
    return report


def _cautions(report: Report) -> Iterator[str]:
    """Yield cautions that a reader must know before relying on the results."""
    yield from describe_duplicates(report.duplicates)
    yield from without_interval(report)
    for row, method in report.methods.items():
        if method.degenerate:
            yield f"{row}: nearly all images have the same score, so it is never marked as the best"
    for name in (name for sets in report.benchmark.groups.values() for name in sets):
        found = {row: method.sets[name].intervals["auroc"][1] for row, method in report.methods.items()}
        below = [row for row, high in found.items() if high < 0.5]
        if below:
            yield f"{shorten(name)}: AUROC below 50 % with {abridged(below)}; OOD images score above ID images"
    for name, info in report.sets.items():
        if info.skipped:
            first = "{item}: {reason}".format(**info.skipped[0])
            yield f"{name}: {len(info.skipped)} images were skipped; first: {first}"


def _thumbnails(report: Report, scored: Mapping[str, SetScores]) -> dict[str, NDArray[np.uint8]]:
    """Return thumbnails of the images that methods get most wrong, by `set/index`."""
    wrong = (entry for parts in report.wrong.values() for entries in parts.values() for entry in entries)
    found: dict[str, NDArray[np.uint8]] = {}
    for name, index in sorted({(entry.set, entry.index) for entry in wrong}):
        images = scored[name].source.images
        if images is not None:
            with suppress(DataError):  # the image was deleted after it was scored
                found[f"{name}/{index}"] = np.array(thumbnail(images.picture(index), SHOWN))
    return found


def duplicates(scored: Mapping[str, SetScores]) -> list[dict[str, Any]]:
    """Return the numbers of duplicates and near-duplicates within test sets, and between sets that must be disjoint.

    ID and OOD sets must be disjoint, and so must test sets and other sets.
    """
    tested, found = ("id_test", *GROUPS), list[dict[str, Any]]()
    for name, one in scored.items():
        if one.source.role in tested and one.source.images is not None:
            same, alike = within(one.digests, one.source.images, one.index)
            found += [{"sets": [name], "images": same, "near": alike}] if same or alike else []
    for one, other in combinations(scored.values(), 2):
        first, second = one.source, other.source
        same_kind = first.role.startswith("id_") == second.role.startswith("id_")
        if same_kind and (first.role in tested) == (second.role in tested):
            continue
        same, alike = common(one.digests, other.digests), 0
        if first.images is not None and second.images is not None:
            alike = near(one.digests, other.digests, (first.images, second.images), (one.index, other.index))
        if same or alike:
            found.append({"sets": [first.name, second.name], "images": same, "near": alike})
    return found


def provenance(command: str, seed: int) -> dict[str, Any]:
    """Return the versions, machine, time, seed and command of a run."""
    versions = {"python": platform.python_version(), "decoder": decoder_version()}
    for name in ("idness", "torch", "torchvision", "timm", "numpy"):
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "command": command,
        "seed": seed,
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "versions": versions,
        "machine": {"cpu": platform.machine(), "cores": os.cpu_count() or 0, "threads": torch.get_num_threads()},
    }


def peak_memory() -> int:
    """Return the peak memory of this process in bytes; 0 if the system is not Linux."""
    status = Path("/proc/self/status")  # getrusage starts with the memory of the parent process
    return 1024 * int(status.read_text().partition("VmHWM:")[2].split()[0]) if status.is_file() else 0

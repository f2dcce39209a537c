"""The results of a benchmark, stored in a folder as JSON and safetensors.

- `results.json`: a `Report`; metrics are in [0, 1], there are no absolute paths, and missing values are null.
- `scores.safetensors`: `scores/{method}/{set}` float32 (N,) for every set but id_train; `index/{set}` int64 (N,), the position of
  each image in its set (skipped images are missing); `labels/{set}` if known; `predicted/{set}`, the class that the plain network
  predicts.
- `thumbs.safetensors`: `{set}/{index}` uint8 (h, w, 3), thumbnails of the images in `Report.wrong`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from idness.core.documents import Document, packed
from idness.core.errors import StoreError, needed, unknown_name
from idness.core.files import OutputFolder, sha256_of
from idness.core.text import percentage, shorten
from idness.intervals import Difference
from idness.metrics import NAMES, SELECTIVE, WITH_INTERVAL

SCHEMA_VERSION = 1
RESULTS, SCORES, THUMBS = "results.json", "scores.safetensors", "thumbs.safetensors"
TABLES, PAGE = ("results.csv", "results.md", "results.tex"), "report.html"
DERIVED = (*TABLES, PAGE)
"""Files that are derived from a report."""


@dataclass(kw_only=True)
class Metrics:
    """The metrics of one set or group, 95 % intervals of three, and `marks` for metrics in which the method is `best` or a `tie`."""

    auroc: float
    fpr_at_id_recall: float
    fpr_at_ood_recall: float
    aupr_in: float
    aupr_out: float
    aurc: float | None = None
    accepted_accuracy: float | None = None
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    marks: dict[str, Literal["best", "tie"]] = field(default_factory=dict)


@dataclass(kw_only=True)
class MethodResult:
    """The results of one method, and the choice of its options; `degenerate` if nearly all images have the same score.

    `tried` lists the settings that the search tried, with their `options` and their `auroc` on validation data.
    """

    method: str
    label: str
    about: str
    options: dict[str, Any]
    chosen_by: str
    validation_auroc: float | None = None
    tried: list[dict[str, Any]] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    id_accuracy_shaped: float | None = None
    degenerate: bool = False
    seconds: dict[str, float] = field(default_factory=dict)
    sets: dict[str, Metrics] = field(default_factory=dict)
    groups: dict[str, Metrics] = field(default_factory=dict)


@dataclass(kw_only=True)
class SetInfo:
    """A data set: its role, number of images, origin, hash of its images in order, and each skipped `item` with the `reason`."""

    role: str
    images: int
    source: str
    sha256: str
    skipped: list[dict[str, str]] = field(default_factory=list)


@dataclass(kw_only=True)
class BenchmarkInfo:
    """The benchmark: its name, the classes, and the sets of each group."""

    name: str
    title: str
    classes: list[str]
    groups: dict[str, list[str]]


@dataclass(kw_only=True)
class ModelInfo:
    """The network: its name, the hash of its weights, and its sizes."""

    spec: str
    weights: str | None
    weights_sha256: str
    layer: str
    features: int
    classes: int
    parameters: int


@dataclass(kw_only=True)
class Wrong:
    """One of the images that a method gets most wrong."""

    set: str
    index: int
    item: str
    score: float
    label: int | None
    predicted: int


@dataclass(kw_only=True)
class Rival:
    """The lead of the best method over another in mean AUROC.

    The interval is adjusted for the number of methods; in a `tie` it contains zero.
    """

    row: str
    lead: Difference
    tie: bool


@dataclass(kw_only=True)
class Answer:
    """The recommended method and the evidence for it.

    Attributes:
        kind: whether the method is significantly better than all others, tied, worse than another one on the test sets, the only one
            measured, or whether no method is useful.
        use: the recommended method, chosen without the test sets.
        best: the method with the highest mean AUROC on the test sets.
        auroc: mean AUROC of each method, best first.
        intervals: their 95 % intervals.
        rivals: all methods but the best one, nearest first.
        sentence: the recommendation in words.
        evidence: the evidence for and against it.
        cost: the cost of a score in addition to the network's own pass.
    """

    kind: Literal["clear", "tie", "behind", "only", "useless"]
    use: str
    best: str
    auroc: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    rivals: list[Rival]
    sentence: str
    evidence: list[str]
    cost: str = ""

    @property
    def ties(self) -> list[str]:
        """The methods that are not significantly different from the best one."""
        return [rival.row for rival in self.rivals if rival.tie]


@dataclass(kw_only=True)
class Report:
    """The results of a benchmark.

    Its attributes are the keys of `results.json`. Scores and thumbnails are read from the folder on first use. `answer`, `engine` and
    `files` (the sha256 of the files next to `results.json`) are missing in results of version 0.1; `conclude` adds the answer.
    """

    benchmark: BenchmarkInfo
    model: ModelInfo
    preprocessing: dict[str, Any]
    precision: dict[str, str]
    sets: dict[str, SetInfo]
    id_accuracy: float | None
    methods: dict[str, MethodResult]
    answer: Answer | None = None
    engine: dict[str, Any] = field(default_factory=dict)
    recall: float = 0.95
    failed: dict[str, str] = field(default_factory=dict)
    advised: str = ""
    advised_why: str = ""
    wrong: dict[str, dict[str, list[Wrong]]] = field(default_factory=dict)
    duplicates: list[dict[str, Any]] = field(default_factory=list)
    time: dict[str, float] = field(default_factory=dict)
    peak_memory: int = 0
    provenance: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    files: dict[str, str] | None = None
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> str:
        """Return everything except scores and thumbnails as JSON."""
        return _DOCUMENT.text(self)

    @classmethod
    def from_json(cls, text: str | bytes, name: object = RESULTS) -> Report:
        """Return the report of `to_json`; `name` is the name of the file in errors."""
        return _DOCUMENT.parse(text, name)

    def attach(self, scores: Mapping[str, NDArray[Any]], thumbs: Mapping[str, NDArray[np.uint8]]) -> None:
        """Add scores and thumbnails, named as in their files."""
        self.__dict__["scores"], self.__dict__["thumbs"] = ScoreArrays(scores), dict(thumbs)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the report with its scores and thumbnails into a folder, and return the path of `results.json`.

        The folder must be new, empty, or written by idness. All files are written before the first one is moved into place, so a full
        disk leaves the folder unchanged. `results.json` is moved last and contains the hashes of the others, so a mixture of two runs
        is detected on reading.
        """
        target = results_folder(folder)
        arrays = {SCORES: self.scores.arrays if self.has_scores else {}, THUMBS: self.thumbs}
        contents = {name: packed(found) for name, found in arrays.items() if found}
        self.files = {name: sha256_of(content) for name, content in contents.items()}
        target.write({**contents, RESULTS: self.to_json()})
        target.remove(arrays.keys() - contents)  # of an earlier run
        self.__dict__["_folder"] = target.path
        return target.path / RESULTS

    @classmethod
    def load(cls, folder: str | Path) -> Report:
        """Load a report from its folder or its `results.json`."""
        place = Path(folder)
        path = place if place.suffix == ".json" else place / RESULTS
        report = _DOCUMENT.read(path)
        report.__dict__["_folder"] = path.parent
        return report

    @property
    def has_scores(self) -> bool:
        """Whether the scores are available: attached, or in the folder."""
        return self._has(SCORES)

    @cached_property
    def scores(self) -> ScoreArrays:
        """The scores of every image."""
        return ScoreArrays(self._read(SCORES))

    @cached_property
    def thumbs(self) -> dict[str, NDArray[np.uint8]]:
        """The thumbnails by `set/index`; empty if the sets are activations."""
        return self._read(THUMBS) if self._has(THUMBS) else {}

    def _has(self, name: str) -> bool:
        folder = self.__dict__.get("_folder")
        listed = self.files is None or name in self.files
        return Path(name).stem in self.__dict__ or (folder is not None and listed and (folder / name).is_file())

    def _read(self, name: str) -> dict[str, NDArray[Any]]:
        if "_folder" not in self.__dict__:
            raise StoreError("Report: has no folder to read scores from; save it first")
        digest = None if self.files is None else self.files.get(name)
        found = _DOCUMENT.tensors(self.__dict__["_folder"] / name, digest)
        return {key: value.numpy() for key, value in found.items()}

    def lines(self) -> list[dict[str, Any]]:
        """Return all numbers as one record per method and group or set, best method first, with the columns of `results.csv`."""
        found = []
        for rank, row in enumerate(best_first(self), start=1):
            method = self.methods[row]
            use = int(self.answer is not None and row == self.answer.use)
            for kind, parts in (("group", method.groups), ("set", method.sets)):
                for name, metrics in parts.items():
                    line = {"method": row, "label": method.label, "rank": rank, "use": use, "kind": kind, "name": name}
                    line |= {key: getattr(metrics, key) for key in (*NAMES, *SELECTIVE)}
                    for key in WITH_INTERVAL:
                        line[f"{key}_low"], line[f"{key}_high"] = metrics.intervals.get(key, (None, None))
                    line |= {f"{key}_mark": metrics.marks.get(key, "") for key in WITH_INTERVAL}
                    line |= {"id_accuracy": self.id_accuracy, "id_accuracy_shaped": method.id_accuracy_shaped}
                    found.append(line | {"seconds": round(sum(method.seconds.values()), 4)})
        return found

    def to_dataframe(self) -> Any:
        """Return a pandas DataFrame of `lines`; intervals are columns such as `auroc_low`."""
        return needed("pandas", "to_dataframe", "tables", StoreError).DataFrame(self.lines())

    def __repr__(self) -> str:
        lines = [f"Report: {shorten(self.benchmark.title)}, {shorten(self.model.spec)}"]
        lines.append("AUROC %".ljust(40) + "".join(f"{shorten(group):>10}" for group in self.benchmark.groups))
        for method in (self.methods[row] for row in best_first(self)):
            cells = (f"{percentage(found.auroc):>10}" for found in method.groups.values())
            lines.append(shorten(method.label).ljust(40) + "".join(cells))
        return "\n".join(lines)


class ScoreArrays:
    """The arrays of the scores file, by method and set."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.arrays = arrays

    def of(self, row: str, name: str) -> NDArray[np.float32]:
        """Return a method's scores of a set; higher is more in-distribution."""
        return self._get(f"scores/{row}/{name}")

    def index(self, name: str) -> NDArray[np.int64]:
        """Return the position of each image in its set."""
        return self._get(f"index/{name}")

    def _get(self, name: str) -> NDArray[Any]:
        if name not in self.arrays:
            raise unknown_name("entry of the scores file", name, self.arrays)
        return self.arrays[name]


_DOCUMENT = Document(
    content=Report,
    version=SCHEMA_VERSION,
    key="schema_version",
    absent="pass a folder that idness bench wrote",
    remedy="run the benchmark again",
)


def ood_weights(report: Report) -> dict[str, float]:
    """Return the weight of each OOD test set: groups have equal weights, and so do the sets of a group."""
    groups = report.benchmark.groups
    return {name: 1 / (len(groups) * len(sets)) for sets in groups.values() for name in sets}


def best_first(report: Report) -> list[str]:
    """Return the methods sorted by mean AUROC (the mean of the group means), degenerate ones last."""
    weights = ood_weights(report)

    def standing(row: str) -> tuple[bool, float]:
        found = report.methods[row]
        return not found.degenerate, sum(weight * found.sets[name].auroc for name, weight in weights.items())

    return sorted(report.methods, key=standing, reverse=True)


def describe_duplicates(pairs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return `Report.duplicates` in words, near-duplicates within several sets in one line."""
    lines, within = [], []
    for pair in pairs:
        names, same, near = " and ".join(map(shorten, pair["sets"])), pair["images"], pair.get("near", 0)
        where = "twice in" if len(pair["sets"]) == 1 else "in both"
        if where == "twice in" and not same:
            within.append(f"{names} ({near})")
        else:
            what = [f"{n:,} {one}{'s' * (n > 1)}" for one, n in (("image", same), ("near-duplicate", near)) if n]
            lines.append(f"{where} {names}: {' and '.join(what)}")
    return [*lines, f"near-duplicates within {', '.join(within)}"] if within else lines


def results_folder(path: str | os.PathLike[str], *, force: bool = False) -> OutputFolder:
    """Return the output folder of a report."""
    return OutputFolder.of(path, _written, force=force)


def _written(folder: Path) -> tuple[str, ...]:
    """Return the file names of a report of 0.1.0, which does not list its files; empty if the folder has no report."""
    try:
        Report.load(folder)
    except StoreError:
        return ()
    return (RESULTS, SCORES, THUMBS, *DERIVED, "reproduced.key")

"""What a benchmark found: written to a folder as JSON and safetensors, and read back.

A folder holds

- `results.json`: a `Report`; every metric in [0, 1], no absolute path, missing values null.
- `scores.safetensors`: `scores/{row}/{set}` float32 (N,) for every set but id_train; `index/{set}` int64 (N,), each image's
  place in its set, from which skipped images are missing; `labels/{set}` where known; `predicted/{set}`, the plain network's class.
- `thumbs.safetensors`: `{set}/{index}` uint8 (h, w, 3), small copies of the images that `Report.wrong` names.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from idness.core.errors import StoreError, unknown_name
from idness.core.files import atomic_path, atomic_write
from idness.core.typed_json import built, plain, schema_of

SCHEMA_VERSION = 1
METRICS = ("auroc", "fpr_at_id_recall", "fpr_at_ood_recall", "aupr_in", "aupr_out")
RESULTS, SCORES, THUMBS = "results.json", "scores.safetensors", "thumbs.safetensors"


@dataclass(kw_only=True)
class Metrics:
    """Holds the five metrics of one set or group, with 95 % intervals (low, high) of those that have one."""

    auroc: float
    fpr_at_id_recall: float
    fpr_at_ood_recall: float
    aupr_in: float
    aupr_out: float
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(kw_only=True)
class Trial:
    """Is one setting that the search tried, with its AUROC on validation data."""

    options: dict[str, Any]
    auroc: float


@dataclass(kw_only=True)
class MethodResult:
    """Holds what one row of the comparison reached, and with which options."""

    method: str
    label: str
    about: str
    options: dict[str, Any]
    chosen_by: str
    validation_auroc: float | None = None
    tried: list[Trial] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    id_accuracy_shaped: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    sets: dict[str, Metrics] = field(default_factory=dict)
    groups: dict[str, Metrics] = field(default_factory=dict)


@dataclass(kw_only=True)
class Skipped:
    """Is one image that could not be used, and why."""

    item: str
    reason: str


@dataclass(kw_only=True)
class SetInfo:
    """Describes one set: its role, its images, and a hash of their contents in order."""

    role: str
    images: int
    source: str
    sha256: str
    skipped: list[Skipped] = field(default_factory=list)


@dataclass(kw_only=True)
class BenchmarkInfo:
    """Describes the benchmark: its name, the classes, and which sets each group has."""

    name: str
    title: str
    classes: list[str]
    groups: dict[str, list[str]]


@dataclass(kw_only=True)
class ModelInfo:
    """Describes the network: how it was named, its weights' hash and its sizes."""

    spec: str
    weights: str | None
    weights_sha256: str
    layer: str
    features: int
    classes: int
    parameters: int


@dataclass(kw_only=True)
class Wrong:
    """Is an image that a detector gets most wrong."""

    set: str
    index: int
    item: str
    score: float
    label: int | None
    predicted: int


@dataclass(kw_only=True)
class Sweep:
    """Holds the group AUROC at each percentile, by row and group, and that of the plain energy beside it."""

    percentiles: list[float]
    auroc: dict[str, dict[str, list[float]]]
    ebo: dict[str, float]


@dataclass(kw_only=True)
class Report:
    """Is the result of a benchmark.

    Its attributes are the keys of `results.json`. Scores and thumbnails are read from the folder when they are asked for.
    """

    benchmark: BenchmarkInfo
    model: ModelInfo
    preprocessing: dict[str, Any]
    precision: dict[str, str]
    sets: dict[str, SetInfo]
    id_accuracy: float | None
    methods: dict[str, MethodResult]
    recall: float = 0.95
    failed: dict[str, str] = field(default_factory=dict)
    sweep: Sweep | None = None
    wrong: dict[str, dict[str, list[Wrong]]] = field(default_factory=dict)
    duplicates: list[dict[str, Any]] = field(default_factory=list)
    time: dict[str, float] = field(default_factory=dict)
    peak_memory: int = 0
    provenance: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> str:
        """Write everything but scores and thumbnails as JSON."""
        values = {item.name: plain(getattr(self, item.name)) for item in dataclasses.fields(self)}
        first = {"schema_version": values.pop("schema_version")}
        return json.dumps(first | values, indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Read what `to_json` wrote."""
        try:
            values = json.loads(text)
        except ValueError as error:
            raise StoreError(f"{RESULTS} is damaged: no JSON ({error}); run the benchmark again") from error
        version = values.get("schema_version") if isinstance(values, dict) else None
        if not isinstance(version, int):
            raise StoreError(f"{RESULTS} is no result of a benchmark: it has no schema_version")
        if version > SCHEMA_VERSION:
            raise StoreError(f"{RESULTS} has schema version {version}, newer than {SCHEMA_VERSION}; update idness")
        try:
            found = built(cls, values)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StoreError(f"{RESULTS} is damaged: {error}; run the benchmark again") from error
        assert isinstance(found, Report)
        return found

    @staticmethod
    def schema() -> dict[str, Any]:
        """Give the JSON Schema of `results.json`."""
        return schema_of(Report)

    def attach(self, scores: Mapping[str, NDArray[Any]], thumbs: Mapping[str, NDArray[np.uint8]]) -> None:
        """Take scores and thumbnails, named as in their files."""
        self.__dict__["_scores"], self.__dict__["thumbs"] = dict(scores), dict(thumbs)
        self.__dict__["scores"] = Scores(scores)

    def save(self, folder: str | Path) -> Path:
        """Write the report, and the scores and thumbnails that were attached, into a folder; `results.json` comes last."""
        folder = Path(folder)
        attached = ((SCORES, self.__dict__.get("_scores")), (THUMBS, self.__dict__.get("thumbs")))
        for name, arrays in attached:
            (folder / name).unlink(missing_ok=True)  # what an earlier run left does not belong to this one
            if arrays:
                with atomic_path(folder / name) as part:
                    save_file({key: np.ascontiguousarray(value) for key, value in arrays.items()}, part)
        path = atomic_write(folder / RESULTS, self.to_json())
        self.__dict__["_folder"] = folder
        return path

    @classmethod
    def load(cls, folder: str | Path) -> Report:
        """Read a report from the folder that a benchmark wrote, or from its `results.json`."""
        place = Path(folder)
        path = place if place.suffix == ".json" else place / RESULTS
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise StoreError(f"{place}: holds no {RESULTS}; give a folder that idness bench wrote") from error
        report = cls.from_json(text)
        report.__dict__["_folder"] = path.parent
        return report

    @property
    def folder(self) -> Path:
        """Where the report was read from or written to."""
        found = getattr(self, "_folder", None)
        if not isinstance(found, Path):
            raise StoreError("this report is in no folder, so its scores cannot be read; save it first")
        return found

    @cached_property
    def scores(self) -> Scores:
        """The scores of every image."""
        return Scores(self.folder / SCORES)

    @cached_property
    def thumbs(self) -> dict[str, NDArray[np.uint8]]:
        """The small images by `set/index`; none where the sets are no images."""
        path = self.folder / THUMBS
        if not path.is_file():
            return {}
        with _opened(path) as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118

    def to_dataframe(self) -> Any:
        """Give a pandas table with one line per method and set or group."""
        try:
            import pandas as pd
        except ImportError as error:
            raise StoreError("to_dataframe needs pandas; pip install 'idness[tables]'") from error
        lines = []
        for row, method in self.methods.items():
            for kind, found in (("set", method.sets), ("group", method.groups)):
                for name, metrics in found.items():
                    lines.append(
                        {"method": row, "label": method.label, "kind": kind, "name": name}
                        | {key: getattr(metrics, key) for key in METRICS}
                    )
        return pd.DataFrame(lines)

    def _repr_html_(self) -> str:
        """Show AUROC by group in a notebook."""
        groups = list(self.benchmark.groups)
        head = "".join(f"<th>{escape(group)} AUROC</th>" for group in groups)
        body = "".join(
            f"<tr><td><code>{escape(method.label)}</code></td>"
            + "".join(f"<td>{100 * method.groups[group].auroc:.2f}</td>" for group in groups)
            + "</tr>"
            for method in self.methods.values()
        )
        caption = f"{escape(self.benchmark.title)} · {escape(self.model.spec)}"
        return f"<table><caption>{caption}</caption><thead><tr><th>method</th>{head}</tr></thead><tbody>{body}</tbody></table>"


class Scores:
    """Gives single arrays of a scores file, or of scores in memory."""

    def __init__(self, source: Path | Mapping[str, NDArray[Any]]) -> None:
        self.source = source
        if isinstance(source, Mapping):
            self.names = frozenset(source)
        else:
            with _opened(source) as file:
                self.names = frozenset(file.keys())

    def of(self, row: str, name: str) -> NDArray[np.float32]:
        """Read one row's scores of one set; higher is more in-distribution."""
        return self._get(f"scores/{row}/{name}")

    def index(self, name: str) -> NDArray[np.int64]:
        """Read the place of each image in its set."""
        return self._get(f"index/{name}")

    def labels(self, name: str = "id_test") -> NDArray[np.int64] | None:
        """Read the labels of a set, where they are known."""
        return self._get(f"labels/{name}") if f"labels/{name}" in self.names else None

    def predicted(self, name: str) -> NDArray[np.int64]:
        """Read the plain network's class of each image."""
        return self._get(f"predicted/{name}")

    def _get(self, name: str) -> NDArray[Any]:
        if name not in self.names:
            raise unknown_name("entry of the scores file", name, self.names)
        if isinstance(self.source, Mapping):
            return self.source[name]
        with _opened(self.source) as file:
            found: NDArray[Any] = file.get_tensor(name)
        return found


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="np")
    except (OSError, SafetensorError) as error:
        raise StoreError(f"{path.name}: is missing or damaged; run the benchmark again") from error

"""What a benchmark found: written to a folder as JSON and safetensors, and read back.

A folder holds

- `results.json`: a `Report`; every metric in [0, 1], no absolute path, missing values null.
- `scores.safetensors`: `scores/{row}/{set}` float32 (N,) for every set but id_train; `index/{set}` int64 (N,), each image's
  place in its set, from which skipped images are missing; `labels/{set}` where known; `predicted/{set}`, the plain network's class.
- `thumbs.safetensors`: `{set}/{index}` uint8 (h, w, 3), small copies of the images that `Report.wrong` names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idness.benchmark.parts import Answer, BenchmarkInfo, MethodResult, ModelInfo, SetInfo, Sweep, Wrong
from idness.core.documents import Document, packed
from idness.core.errors import StoreError, unknown_name
from idness.core.extras import needed
from idness.core.files import OutputFolder, sha256_of
from idness.core.wording import percent, shown
from idness.metrics import NAMES

SCHEMA_VERSION = 1
RESULTS, SCORES, THUMBS = "results.json", "scores.safetensors", "thumbs.safetensors"
TABLES, PAGE = ("results.csv", "results.md", "results.tex"), "report.html"
DERIVED = (*TABLES, PAGE)
"""Files that are made from a report."""


def results_folder(path: str | os.PathLike[str], *, force: bool = False) -> OutputFolder:
    """Return the output folder of a report."""
    return OutputFolder.of(path, _written, force=force)


def _written(folder: Path) -> tuple[str, ...]:
    """Return the names of the files that a report of 0.1.0 consists of; empty if the folder has none."""
    try:
        Report.load(folder)
    except StoreError:
        return ()
    return (RESULTS, SCORES, THUMBS, *DERIVED, "reproduced.key")


@dataclass(kw_only=True)
class Report:
    """Keeps all that a benchmark found.

    Its attributes are the keys of `results.json`. Scores and thumbnails are read from the folder when they are asked for.
    """

    benchmark: BenchmarkInfo
    model: ModelInfo
    preprocessing: dict[str, Any]
    precision: dict[str, str]
    sets: dict[str, SetInfo]
    id_accuracy: float | None
    methods: dict[str, MethodResult]
    answer: Answer | None = None
    """Which row to use; none in what version 0.1 wrote, until `conclude` works it out from the scores."""
    engine: dict[str, Any] = field(default_factory=dict)
    """What ran the network; nothing in what version 0.1 wrote."""
    recall: float = 0.95
    failed: dict[str, str] = field(default_factory=dict)
    advised: str = ""
    advised_why: str = ""
    sweep: Sweep | None = None
    wrong: dict[str, dict[str, list[Wrong]]] = field(default_factory=dict)
    duplicates: list[dict[str, Any]] = field(default_factory=list)
    time: dict[str, float] = field(default_factory=dict)
    peak_memory: int = 0
    provenance: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    files: dict[str, str] | None = None
    """The sha256 of the files beside `results.json`, by name; none in what version 0.1 wrote."""
    schema_version: int = SCHEMA_VERSION

    def __repr__(self) -> str:
        """Return a short table: the AUROC of each method on each group, best first."""
        groups = list(dict.fromkeys(name for row in self.methods.values() for name in row.groups))
        found = {
            row.label: [row.groups[name].auroc for name in groups if name in row.groups]
            for row in self.methods.values()
        }
        best = sorted(found, key=lambda label: -sum(found[label]) / max(1, len(found[label])))
        width = max(map(len, ("AUROC %", *map(shown, best))))
        lines = [
            f"{shown(label):{width}}{''.join(f'{percent(value):>10}' for value in found[label])}" for label in best
        ]
        head = f"{'AUROC %':{width}}{''.join(f'{shown(name):>10}' for name in groups)}"
        return "\n".join([f"Report: {shown(self.benchmark.title)}, {shown(self.model.spec)}", head, *lines])

    def to_json(self) -> str:
        """Write everything but scores and thumbnails as JSON."""
        return _DOCUMENT.text(self)

    @classmethod
    def from_json(cls, text: str | bytes, name: object = RESULTS) -> Report:
        """Read what `to_json` wrote; `name` stands in errors."""
        return _DOCUMENT.parse(text, name)

    @staticmethod
    def schema() -> dict[str, Any]:
        """Give the JSON Schema of `results.json`."""
        return _DOCUMENT.schema()

    def attach(self, scores: Mapping[str, NDArray[Any]], thumbs: Mapping[str, NDArray[np.uint8]]) -> None:
        """Take scores and thumbnails, named as in their files."""
        self.__dict__["scores"], self.__dict__["thumbs"] = Scores(scores), dict(thumbs)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the report with its scores and thumbnails into a folder.

        The folder must be new, empty, or one that idness wrote. All files are written before the first takes its place, so a full disk
        leaves the folder as it was. `results.json` takes its place last and names the others by their hash, so a folder half
        replaced is noticed when it is read.
        """
        target = results_folder(folder)
        arrays = {
            SCORES: self.scores.arrays if self.has_scores else {},
            THUMBS: self.thumbs if self._has(THUMBS) else {},
        }
        contents = {name: packed(found) for name, found in arrays.items() if found}
        self.files = {name: sha256_of(content) for name, content in contents.items()}
        target.write({**contents, RESULTS: self.to_json()})
        target.remove(arrays.keys() - contents)  # those of an earlier run do not belong to this one
        self.__dict__["_folder"] = target.path
        return target.path / RESULTS

    @classmethod
    def load(cls, folder: str | Path) -> Report:
        """Read a report from the folder that a benchmark wrote, or from its `results.json`."""
        place = Path(folder)
        path = place if place.suffix == ".json" else place / RESULTS
        report = _DOCUMENT.read(path)
        report.__dict__["_folder"] = path.parent
        return report

    @property
    def folder(self) -> Path:
        """Where the report was read from or written to."""
        found = getattr(self, "_folder", None)
        if not isinstance(found, Path):
            raise StoreError("this report is in no folder, so its scores cannot be read; save it first")
        return found

    @property
    def has_scores(self) -> bool:
        """Whether the scores are at hand: attached, or in the folder."""
        return self._has(SCORES)

    @cached_property
    def scores(self) -> Scores:
        """The scores of every image."""
        return Scores(self._read(SCORES))

    @cached_property
    def thumbs(self) -> dict[str, NDArray[np.uint8]]:
        """The small images by `set/index`; none where the sets are no images."""
        return self._read(THUMBS) if self._has(THUMBS) else {}

    def _has(self, name: str) -> bool:
        if Path(name).stem in self.__dict__:
            return True
        return (
            "_folder" in self.__dict__ and (self.files is None or name in self.files) and (self.folder / name).is_file()
        )

    def _read(self, name: str) -> dict[str, NDArray[Any]]:
        digest = None if self.files is None else self.files.get(name)
        return {key: value.numpy() for key, value in _DOCUMENT.tensors(self.folder / name, digest).items()}

    def to_dataframe(self) -> Any:
        """Give a pandas table with one line per method and set or group."""
        lines = []
        for row, method in self.methods.items():
            for kind, found in (("set", method.sets), ("group", method.groups)):
                for name, metrics in found.items():
                    lines.append(
                        {"method": row, "label": method.label, "kind": kind, "name": name}
                        | {key: getattr(metrics, key) for key in NAMES}
                    )
        return needed("pandas", "to_dataframe", "tables", StoreError).DataFrame(lines)

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
    """Gives single arrays of the scores by what they are of."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.arrays, self.names = arrays, frozenset(arrays)

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
        return self.arrays[name]


_DOCUMENT = Document(
    content=Report,
    version=SCHEMA_VERSION,
    key="schema_version",
    absent="give a folder that idness bench wrote",
    remedy="run the benchmark again",
)

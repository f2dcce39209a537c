"""The parts of a report, as they stand in `results.json`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from idness.intervals import Difference

Mark = Literal["best", "tie"]
"""What a row is in a metric: the best, or not to be told apart from it."""


@dataclass(kw_only=True)
class Metrics:
    """Keeps the five metrics of one set or group.

    Three of them have 95 % intervals (low, high) and, where the row is the `best` in them or a `tie` with it, a mark.
    """

    auroc: float
    fpr_at_id_recall: float
    fpr_at_ood_recall: float
    aupr_in: float
    aupr_out: float
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    marks: dict[str, Mark] = field(default_factory=dict)


@dataclass(kw_only=True)
class Trial:
    """Records one setting that the search tried, with its AUROC on validation data."""

    options: dict[str, Any]
    auroc: float


@dataclass(kw_only=True)
class MethodResult:
    """Records what one row of the comparison reached, and with which options."""

    method: str
    label: str
    about: str
    options: dict[str, Any]
    chosen_by: str
    validation_auroc: float | None = None
    tried: list[Trial] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    id_accuracy_shaped: float | None = None
    degenerate: bool = False
    """Whether it gives nearly all images one and the same score; it is never the best then."""
    seconds: dict[str, float] = field(default_factory=dict)
    sets: dict[str, Metrics] = field(default_factory=dict)
    groups: dict[str, Metrics] = field(default_factory=dict)


@dataclass(kw_only=True)
class Skipped:
    """Names one image that could not be used, and says why."""

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
    """Describes one of the images that a detector gets most wrong."""

    set: str
    index: int
    item: str
    score: float
    label: int | None
    predicted: int


@dataclass(kw_only=True)
class Sweep:
    """Keeps the group AUROC at each percentile, by row and group, and that of the plain energy beside it."""

    percentiles: list[float]
    auroc: dict[str, dict[str, list[float]]]
    ebo: dict[str, float]


@dataclass(kw_only=True)
class Rival:
    """Compares another row with the best one: by how much that leads in mean AUROC, and whether the two cannot be told apart.

    The interval of the lead allows for the number of rows compared; in a tie it holds zero.
    """

    row: str
    lead: Difference
    tie: bool


@dataclass(kw_only=True)
class Answer:
    """Says which row to use, in one sentence, and what that rests on.

    The row to use leads clearly, cannot be told apart from others, is behind another in hindsight, is the only one, or none is of
    use. `best` has the highest mean AUROC on the test sets, in hindsight; `rivals` are all other rows, the nearest first. `auroc`
    has each row's mean AUROC, the best first, and `intervals` where it lies at 95 %. The evidence says how sure the answer is and
    what speaks against it; `cost` what the row to use costs.
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
        """The rows that cannot be told apart from the best."""
        return [rival.row for rival in self.rivals if rival.tie]

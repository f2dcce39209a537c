"""The paper's tables as data, and the paper's contradictions."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from idness.core.errors import unknown_name

Pair = tuple[float, float]
"""FPR at 95 % recall, in the table's convention, and AUROC; both in percent, as printed."""
PRINTED = ("fpr", "auroc")
OTHER_FILES = ("archives", "slips", "sources")
HOME = Path(__file__).parent


@dataclass(frozen=True)
class PaperRow:
    """A printed row: a method, and possibly the training of its network.

    `method` is written as on the command line, with the paper's options; `None` if idness does not have it. `cells` are by OOD set,
    `means` by group of sets, `spread` (plus-minus) by either; all in percent. `train` has the options of `idness train` for its network.
    """

    name: str
    method: str | None = None
    cells: dict[str, Pair] = field(default_factory=dict)
    means: dict[str, Pair] = field(default_factory=dict)
    id_accuracy: float | None = None
    spread: dict[str, Pair] = field(default_factory=dict)
    training: str | None = None
    weights: str | None = None
    train: str = ""


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper with its protocol.

    `where` is its place in the paper and `benchmark` is the benchmark with its sets. A table of FPR and AUROC has rows, groups (the sets
    of each average) and `fpr`, the name of the printed FPR; a table of p-values has their means by set in `values`.
    """

    name: str
    title: str
    where: str
    benchmark: str
    rows: tuple[PaperRow, ...] = ()
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    fpr: str | None = None
    values: dict[str, float] = field(default_factory=dict)
    note: str = ""
    id: str | None = None

    @property
    def columns(self) -> list[str]:
        """The sets and groups in order: each group's sets, then its average."""
        if not self.groups:
            return list(dict.fromkeys(name for row in self.rows for name in row.means))
        listed: list[str] = []
        for group, members in self.groups.items():
            listed += [name for name in members if any(name in row.cells for row in self.rows)]
            listed.append(group)
        return listed


_TABLE = TypeAdapter(PaperTable)


def names() -> list[str]:
    """Return the names of the tables."""
    return sorted(path.stem for path in HOME.glob("*.toml") if path.stem not in OTHER_FILES)


def load(name: str) -> PaperTable:
    """Return one table by name."""
    if name not in names():
        raise unknown_name("table", name, names())
    return _TABLE.validate_python({"name": name, **read_toml(name)})


def listed_slips() -> list[dict[str, Any]]:
    """Return the paper's contradictions: an average, a cell that two tables print differently, or the text."""
    found: list[dict[str, Any]] = read_toml("slips")["slips"]
    return found


def read_toml(name: str) -> dict[str, Any]:
    """Return the content of a TOML file of this package."""
    return tomllib.loads((HOME / f"{name}.toml").read_text(encoding="utf-8"))

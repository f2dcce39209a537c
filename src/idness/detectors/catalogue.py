"""Tells what methods there are without importing torch, from a file that `tools/catalogue.py` makes of their classes."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

PLACE = Path(__file__).parents[1] / "methods" / "catalogue.json"
DECLARED = (
    "formula",
    "assumes",
    "needs_train",
    "needs_labels",
    "needs_val",
    "assumes_nonnegative",
    "forward_passes",
    "backward_passes",
)


@dataclass(frozen=True)
class Entry:
    """Describes a method to those who choose one.

    It has the name on the command line, what the method does, its paper (its name there, authors, title, venue and year), its
    options with their defaults, and of its class `formula`, `assumes`, `rows` and the flags, which `Detector` explains.
    """

    name: str
    summary: str
    paper: str
    options: dict[str, Any]
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    formula: str = ""
    assumes: str = ""
    needs_train: bool = False
    needs_labels: bool = False
    needs_val: bool = False
    assumes_nonnegative: bool = False
    forward_passes: int = 1
    backward_passes: int = 0

    @property
    def parts(self) -> list[str]:
        """The parts of the formula, each short enough for a line."""
        return self.formula.split(r", \quad ")

    @property
    def signature(self) -> str:
        """The options as they are written on the command line."""
        return ", ".join(f"{key}={value}" for key, value in self.options.items())

    @property
    def learns_from(self) -> str:
        """The images that it learns from, in a word or two."""
        return "labelled" if self.needs_labels else "yes" if self.needs_train else "no"

    @property
    def passes(self) -> str:
        """What a score costs in runs of the network, forward and backward."""
        return f"{self.forward_passes} + {self.backward_passes}" if self.backward_passes else str(self.forward_passes)


def catalogue() -> list[Entry]:
    """List our methods by name, then those of other installed packages."""
    ours = [Entry(**entry) for entry in json.loads(PLACE.read_text(encoding="utf-8"))]
    if {entry.name for entry in ours} != {path.stem for path in PLACE.parent.glob("[!_]*.py")}:
        ours = described()  # a method is being added: its class knows
    if not entry_points(group="idness.methods"):
        return ours
    from idness.detectors.registry import available

    known = {entry.name for entry in ours}
    return ours + [describe(name, cls) for name, cls in available().items() if name not in known]


def described() -> list[Entry]:
    """Describe our methods from their classes."""
    from idness import methods

    found = [describe(name.lower(), getattr(methods, name)) for name in methods.__all__]
    return sorted(found, key=lambda entry: entry.name)


def describe(name: str, cls: Any) -> Entry:
    """Describe a method from its class."""
    paper = (sys.modules[cls.__module__].__doc__ or "").strip().partition("\n\n")[0]
    return Entry(
        name=name,
        summary=cls.summary(),
        paper=" ".join(paper.split()),
        options=cls().options(),
        rows={row: dict(fixed) for row, fixed in cls.rows.items()},
        **{flag: getattr(cls, flag) for flag in DECLARED},
    )


def written() -> str:
    """Give the text of the file, made of the classes."""
    return json.dumps([asdict(entry) for entry in described()], indent=2, ensure_ascii=False) + "\n"

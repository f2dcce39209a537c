"""Tells what methods there are without importing torch, by reading their sources."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

FLAGS = ("needs_train", "needs_labels", "assumes_nonnegative")


@dataclass(frozen=True)
class Entry:
    """Describes one method: its name, what it does, its options with defaults, and what it needs."""

    name: str
    summary: str
    options: dict[str, Any]
    needs_train: bool = False
    needs_labels: bool = False
    assumes_nonnegative: bool = False

    @property
    def signature(self) -> str:
        """The options as they are written on the command line."""
        return ", ".join(f"{key}={value}" for key, value in self.options.items())


def catalogue() -> list[Entry]:
    """List our methods by name, then those of other installed packages."""
    ours = [
        _read(path) for path in sorted((Path(__file__).parents[1] / "methods").glob("*.py")) if path.stem != "__init__"
    ]
    return ours + _foreign(entry.name for entry in ours) if entry_points(group="idness.methods") else ours


def describe(cls: Any) -> Entry:
    """Describe a method from its class; what `catalogue` reads from the source must be the same."""
    import dataclasses

    options = {field.name: field.default for field in dataclasses.fields(cls)}
    flags = {flag: getattr(cls, flag) for flag in FLAGS}
    return Entry(cls.__name__.lower(), (cls.__doc__ or "").strip().splitlines()[0], options, **flags)


def _foreign(ours: Any) -> list[Entry]:
    from idness.detectors.registry import available

    known = set(ours)
    return [describe(cls) for name, cls in available().items() if name not in known]


def _read(path: Path) -> Entry:
    """Read the one detector class of a method's file."""
    tree = ast.parse(path.read_text())
    cls = next(node for node in tree.body if isinstance(node, ast.ClassDef))
    enhances = any(isinstance(base, ast.Name) and base.id == "Enhancer" for base in cls.bases)
    options: dict[str, Any] = {"readout": "energy"} if enhances else {}
    flags: dict[str, bool] = {}
    for node in cls.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            options[node.target.id] = ast.literal_eval(node.value)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in FLAGS:
            flags[node.targets[0].id] = ast.literal_eval(node.value)
    summary = (ast.get_docstring(cls) or "").splitlines()[0]
    return Entry(cls.name.lower(), summary, options, **flags)

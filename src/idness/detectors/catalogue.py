"""What methods there are, for `idness list` and the documentation; built-in methods are read from their source without torch."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

METHODS = Path(__file__).parents[1] / "methods"


@dataclass(frozen=True)
class Entry:
    """Name, first docstring line, paper, options with defaults, and class variables of a method; see `Detector`."""

    name: str
    summary: str
    paper: str
    options: dict[str, Any]
    rows: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    formula: str = ""
    assumes: str = ""
    needs_train: bool = False
    needs_labels: bool = False
    needs_val: bool = False
    assumes_nonnegative: bool = False
    forward_passes: int = 1
    backward_passes: int = 0

    @property
    def signature(self) -> str:
        """The options as written on the command line."""
        return ", ".join(f"{key}={value}" for key, value in self.options.items())

    @property
    def learns_from(self) -> str:
        """Whether training images are needed: `no`, `yes` or `labelled`."""
        return "labelled" if self.needs_labels else "yes" if self.needs_train else "no"

    @property
    def passes(self) -> str:
        """Number of forward passes, and of backward passes if there are any."""
        return f"{self.forward_passes} + {self.backward_passes}" if self.backward_passes else str(self.forward_passes)


def catalogue() -> list[Entry]:
    """Return the built-in methods by name, then those of installed plug-ins."""
    sources = [Path(__file__).with_name("detector.py"), *sorted(METHODS.glob("[!_]*.py"))]
    modules = {path.stem: ast.parse(path.read_text(encoding="utf-8")) for path in sources}
    nodes = {node.name: node for module in modules.values() for node in module.body if isinstance(node, ast.ClassDef)}
    names = {name.lower(): name for name in nodes}
    made: dict[str, type] = {}
    found = [
        describe(stem, _skeleton(names[stem], nodes, made), ast.get_docstring(modules[stem]) or "")
        for stem in list(modules)[1:]
    ]
    if entry_points(group="idness.methods"):
        import sys

        from idness.detectors.registry import available

        others = {name: cls for name, cls in available().items() if name not in modules}
        found += [describe(name, cls, sys.modules[cls.__module__].__doc__ or "") for name, cls in others.items()]
    return found


def describe(name: str, cls: Any, module_docstring: str) -> Entry:
    """Return the entry of a method's class."""
    return Entry(
        name=name,
        summary=(cls.__doc__ or "").strip().partition("\n")[0],
        paper=" ".join(module_docstring.strip().partition("\n\n")[0].split()),
        options={option.name: option.default for option in dataclasses.fields(cls)},
        **{key.name: getattr(cls, key.name) for key in dataclasses.fields(Entry)[4:]},
    )


def _skeleton(name: str, nodes: Mapping[str, ast.ClassDef], made: dict[str, type]) -> type:
    """Return a dataclass with the docstring, the literal class variables and the options of a class in the source."""
    if name not in made:
        node, options = nodes[name], []
        variables: dict[str, Any] = {"__doc__": ast.get_docstring(node)}
        for line in node.body:
            if isinstance(line, ast.Assign):
                variables |= {
                    target.id: _literal(line.value) for target in line.targets if isinstance(target, ast.Name)
                }
            elif isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.value is not None:
                if "ClassVar" in ast.unparse(line.annotation):
                    variables[line.target.id] = _literal(line.value)
                elif not line.target.id.startswith("_"):
                    options.append((line.target.id, Any, field(default=_literal(line.value))))
        bases = [base.id for base in node.bases if isinstance(base, ast.Name) and base.id in nodes]
        made[name] = dataclasses.make_dataclass(
            name,
            options,
            bases=tuple(_skeleton(base, nodes, made) for base in bases),
            namespace=variables,
            kw_only=True,
        )
    return made[name]


def _literal(value: ast.expr) -> Any:
    """Return the value of an expression; of a declared option such as `percent(85.0)` the default; `None` if it is no literal."""
    try:
        return ast.literal_eval(value.args[0] if isinstance(value, ast.Call) else value)
    except ValueError:
        return None

"""Keeps the structure: imports point one way, files stay small and are named after their subject."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "idness"
FILES = sorted(path for path in SOURCE.rglob("*.py"))

LEVELS = [  # a module may import from its own level and those before it
    {"errors", "listening", "typed_json"},
    {"types", "files", "embedded"},
    {"checks", "kernels", "readouts", "gaussian", "metrics", "data", "store", "trust"},
    {"detector", "intervals", "loading", "model", "paired"},
    {"registry", "methods", "catalogue", "precision", "training"},
    {"search", "groups", "extraction", "results", "protocol", "settings", "streams", "provenance"},
    {"evaluation", "preparation", "conformal", "verdict", "gallery"},
    {"benchmark", "guard", "guard_file", "export"},
    {"paper", "report", "compare"},
    {"analysis", "reproduce", "serve"},
    {"choosing", "judging", "own_data"},
    {"cli"},
]
LEVEL = {name: number for number, names in enumerate(LEVELS) for name in names}
LAZY = {  # imports inside a function that go up, each with its reason
    ("loading", "training"),  # the embedded networks' architecture
}


def subject(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("idness"):
            names = [node.module] if node.module != "idness" else [f"idness.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("idness.")]
        else:
            continue
        found |= {name.split(".")[1] for name in names if "." in name}
    return found - {"__version__"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path):
    here = subject(path)
    if here == "__init__":
        return
    assert here in LEVEL, f"{here} has no place in the order of imports; give it one"
    upward = {name for name in imports_of(path) if LEVEL.get(name, 99) > LEVEL[here] and (here, name) not in LAZY}
    assert not upward


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_are_small_and_named_after_their_subject(path):
    lines = path.read_text().splitlines()
    assert len(lines) <= (100 if path.parent.name == "methods" else 330)
    assert path.stem not in {"utils", "util", "common", "misc", "base", "helpers"}
    assert "pickle.load" not in path.read_text()


@pytest.mark.parametrize("command", [["--help"], ["--version"], ["list"], ["bench", "--help"]])
def test_the_command_line_answers_without_torch(command):
    code = (
        "import sys; sys.argv=['idness', *sys.argv[1:]]\n"
        "from idness.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: code = end.code\n"
        "heavy = {'torch', 'numpy', 'scipy', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_nothing_of_this_machine_is_in_the_sources():
    for path in [*FILES, ROOT / "README.md", ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / "constraints.txt"]:
        text = path.read_text()
        assert "/home/" not in text
        assert "/root/" not in text

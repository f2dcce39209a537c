"""Keeps the structure: imports point one way, files stay small and are named after their subject."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "idness"
FILES = sorted(path for path in SOURCE.rglob("*.py"))

ROOMS: dict[str, set[str]] = {
    "core": set()
}  # each room, and the rooms it may import from: those before it in the way of the data
ROOMS["data"] = {"core"}
ROOMS["networks"] = {"core", "data"}
ROOMS["activations"] = {"core", "data", "networks"}
ROOMS["detectors"] = {"core"}
ROOMS["methods"] = {"core", "detectors"}
ROOMS["metrics"] = {"core"}
ROOMS["intervals"] = {"core", "metrics"}
ROOMS["selection"] = set(ROOMS)
ROOMS["benchmark"] = set(ROOMS)
ROOMS["guard"] = set(ROOMS) - {"benchmark"}
ROOMS["cluster"] = {"core", "data", "networks", "activations", "benchmark", "guard"}
ROOMS["training"] = {"core", "data", "networks", "activations", "detectors"}
ROOMS["report"] = {"core", "metrics", "benchmark"}
ROOMS["serve"] = {"core", "data", "detectors", "guard"}
ROOMS["paper"] = set(ROOMS)
ROOMS["cli"] = set(ROOMS)
ROOMS["embedded"] = {"data"}  # the name that users rely on
DOORS = ("__init__", "__main__")
"""The files outside all rooms."""
EXCEPTIONS = {("detectors", "methods")}  # the registry finds our methods by their names


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    """Find the rooms that a file imports from: at its top, inside functions and for types alike."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative imports hide the way"
            module = node.module or ""
            names = [f"idness.{alias.name}" for alias in node.names] if module == "idness" else [module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("idness.")}
    return found - {"__version__"}


def test_the_rooms_have_an_order():
    seen: set[str] = set()
    for name, allowed in ROOMS.items():
        assert allowed <= seen, f"{name} may import from {allowed - seen}, which come after it"
        seen.add(name)
    assert {room(path) for path in FILES} == {*ROOMS, *DOORS}
    assert len(EXCEPTIONS) <= 2


@pytest.mark.parametrize(
    "path", [path for path in FILES if room(path) not in DOORS], ids=lambda path: str(path.relative_to(SOURCE))
)
def test_imports_point_one_way(path):
    here = room(path)
    allowed = {here} | ROOMS[here] | {to for start, to in EXCEPTIONS if start == here}
    assert imports_of(path) <= allowed


def test_the_tests_mirror_the_rooms():
    folders = {
        path.name
        for path in (ROOT / "tests").iterdir()
        if path.is_dir() and path.name not in ("samples", "faults", "golden", "__pycache__")
    }
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == rooms


LARGEST = {
    "src lines": 27_700,
    "src modules": 203,
    "modules of bench": 129,
    "tests lines": 24_000,
    "tools lines": 7_800,
}
"""Ceilings of the project's size; they go down, never up. The goals are 20,000, 140, 90, 18,000 and 6,000."""


def lines_below(*folders: str) -> int:
    return sum(len(path.read_text().splitlines()) for name in folders for path in (ROOT / name).rglob("*.py"))


def test_the_project_stays_small(capsys: pytest.CaptureFixture[str]) -> None:
    code = (
        "import sys, tempfile; sys.argv = ['idness', 'bench', 'cifar6', '--methods', 'msp', '-q', '--out', tempfile.mkdtemp()]\n"
        "from idness.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "print('modules', sum(name.partition('.')[0] == 'idness' for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = {
        "src lines": lines_below("src/idness"),
        "src modules": len(FILES),
        "modules of bench": int(done.stdout.rpartition("modules ")[2]),
        "tests lines": lines_below("tests"),
        "tools lines": lines_below("tools", "benchmarks"),
    }
    with capsys.disabled():
        sys.stdout.write(f"\nsize: {found}\n")
    assert not {name: value for name, value in found.items() if value > LARGEST[name]}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_are_named_after_their_subject(path):
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


WRITER = SOURCE / "core" / "files.py"
WRITING = "unlink rmtree rename renames write_text write_bytes touch extractall truncate copyfile copytree move mkstemp NamedTemporaryFile"
MODE = re.compile(r"'(?=[^']*[wax+])[rwaxbt+]{1,3}'")


def writes(call: ast.Call) -> bool:
    """Whether a call replaces or deletes a file, or opens one for writing."""
    owner, _, name = ast.unparse(call.func).rpartition(".")
    if name == "open":
        return MODE.search(ast.unparse(call)) is not None
    if name == "replace" and owner not in (
        "os",
        "dataclasses",
    ):  # a text's takes two arguments, a dataclass's has no owner
        return bool(owner) and len(call.args) == 1 and not call.keywords
    return bool(owner) and (name in WRITING.split() or f"{owner}.{name}" in ("os.replace", "os.remove", "shutil.copy"))


def test_one_module_owns_writing():
    found = {
        path
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and writes(node)
    }
    assert found == {WRITER}


def test_writing_is_told_from_reading():
    writing = "p.unlink() shutil.rmtree(p) p.rename(q) p.replace(q) os.replace(p,q) os.remove(p) open(p,'w') p.open('ab') open(p,mode='r+')"
    reading = "s.replace('a','b') dataclasses.replace(a) replace(a,b=1) p.open() p.open('rb') Image.open(f) open(p)"
    calls = [ast.parse(line).body[0].value for line in f"{writing} {reading}".split()]
    assert [writes(call) for call in calls] == [True] * len(writing.split()) + [False] * len(reading.split())


def test_nothing_of_this_machine_is_in_the_sources():
    for path in [*FILES, ROOT / "README.md", ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / "constraints.txt"]:
        text = path.read_text()
        assert "/home/" not in text
        assert "/root/" not in text

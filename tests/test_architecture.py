"""The structure of the package: size, direction of imports, homes of names, language, and who writes files."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "idness"
FILES = sorted(path for path in SOURCE.rglob("*.py"))

ROOMS: dict[str, set[str]] = {"core": set()}
"""Each room, and the rooms that it may import from: those before it in the way of the data."""
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


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in FILES}


def imported(node: ast.AST, *, types: bool) -> Iterator[str]:
    """Yield the modules of idness that code imports, inside functions too; `types` includes those under TYPE_CHECKING."""
    if isinstance(node, ast.If) and not types and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "relative imports hide the room"
        names = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (name if name in MODULES else str(node.module) for name in names if name.startswith("idness."))
    elif isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name.startswith("idness."))
    for child in ast.iter_child_nodes(node):
        yield from imported(child, types=types)


def imports_of(path: Path) -> set[str]:
    """Return the rooms that a file imports from."""
    return {name.split(".")[1] for name in imported(ast.parse(path.read_text()), types=True) if "." in name}


def test_modules_do_not_import_each_other_in_a_circle():
    graph = {name: set(imported(ast.parse(path.read_text()), types=False)) - {name} for name, path in MODULES.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError with the modules of a cycle


WALK = (ROOT / "CONTRIBUTING.md").read_text().partition("## Data flow\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize(
    "walk", re.split(r"\n(?=`idness \w+`.*:\n)", WALK)[1:], ids=lambda walk: walk.partition(":")[0]
)
def test_the_walk_names_modules_that_import_only_from_those_above(walk):
    listed = re.findall(r"^\d+\. `([\w.]+)`", walk, re.MULTILINE)
    assert 4 < len(listed) <= 12
    for place, name in enumerate(listed):
        seen, waiting = set[str](), [name]
        while waiting:
            found = set(imported(ast.parse(MODULES[waiting.pop()].read_text()), types=False)) - seen
            seen |= found
            waiting += found & set(MODULES)
        assert not seen & set(listed[place + 1 :]), name


SEVERAL_HOMES = {
    "ConfBranch": "the detector and the training method of one paper",
    "Settings": "those of a benchmark and those of a training run, public since 0.1",
    "build": "a detector, and a network of idness.training.networks, public since 0.1",
    "load": "an embedded set, and a table of idness.paper, public since 0.1",
    "names": "of benchmarks, and of the tables of idness.paper, public since 0.1",
    "run": "of a benchmark, public since 0.1, and of the command line",
}
"""Names of classes and functions that several modules define, and why."""
COMMANDS_AND_LIBRARY = {"analyze", "compare", "extract", "reproduce", "serve"}
"""A command may have the name of the library function that it calls."""


def test_names_have_one_home():
    homes: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                is_command = node.name in COMMANDS_AND_LIBRARY and name.startswith("idness.cli.")
                homes.setdefault(node.name, set()).update(() if is_command else {name})
    several = {name: sorted(where) for name, where in homes.items() if len(where) > 1}
    assert not {name: where for name, where in several.items() if name not in SEVERAL_HOMES}
    assert set(SEVERAL_HOMES) <= set(several)


FIRST_WORDS = re.compile(r"((Give|Say|Tell|Hold|Keep|Hear|Know)s?|Is)\b")
IDIOMS = (
    r"pictures?|photographs?|what the network makes? of|how far it is|goes on|is told|says so|speaks against|none where|"
    r"nothing where|anew|rightly|at hand|by itself|stand-ins?|cannot be told apart|holds zero|that is there|listener"
)
"""Words that the style guide replaces; `picture` remains a name in old files and public options."""


def texts_of(path: Path) -> Iterator[str]:
    """Yield docstrings, comments and other strings of a file."""
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING):
                yield token.string


def test_docstrings_and_messages_are_plain_english():
    starts, idioms = [], []
    for path in FILES:
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node) or ""
                starts += [f"{path.stem}: {text[:60]}"] if FIRST_WORDS.match(text) else []
        for text in texts_of(path):
            idioms += [f"{path.stem}: {found[0]}" for found in re.finditer(rf"\b({IDIOMS})\b", text)]
    assert len(starts) < 10, starts
    assert len(idioms) < 10, idioms


def test_the_rooms_have_an_order():
    seen: set[str] = set()
    for name, allowed in ROOMS.items():
        assert allowed <= seen, f"{name} may import from {allowed - seen}, which come after it"
        seen.add(name)
    assert {room(path) for path in FILES} == {*ROOMS, *DOORS}


@pytest.mark.parametrize(
    "path", [path for path in FILES if room(path) not in DOORS], ids=lambda path: str(path.relative_to(SOURCE))
)
def test_imports_point_one_way(path):
    here = room(path)
    allowed = {here} | ROOMS[here] | ({"methods"} if path.name == "registry.py" else set())  # which finds them by name
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
    "src lines": 21_000,
    "src modules": 145,
    "modules of bench": 90,
    "tests lines": 17_880,
    "tools lines": 6_000,
}
"""Ceilings of the project's size; they go down, never up."""


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


@pytest.mark.parametrize("command", [["--help"], ["--version"], ["list", "--help"], ["bench", "--help"]])
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
    if name == "replace" and owner not in ("os", "dataclasses"):  # a text's takes two arguments
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

"""The tool that breaks the code line by line, on a tree of its own; and that its list fits the code."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
CODE = "def double(x):\n    return x + x\n\n\ndef sign(x):\n    return 1 if x > 0 else -1\n"
TESTS = "from idness.maths import double\n\n\ndef test_double():\n    assert double(3) == 6\n"
NOTICED = '{ find = "x + x", put = "x - x", breaks = "doubling" }'
SURVIVES = '{ find = "x > 0", put = "x >= 0", breaks = "the sign of 0" }'
SAME = '{ find = "x + x", put = "2 * x", breaks = "nothing", equivalent = "doubling either way" }'
WRONGLY_SAME = '{ find = "x + x", put = "x", breaks = "doubling", equivalent = "so it seems" }'


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))  # where the processes of the tests find it too
    return importlib.import_module("mutants")


@pytest.fixture(autouse=True)
def bare_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave plugins out, of which these small trees need none: they take most of the time that it takes to start."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def tree(root: Path, *mutants: str, tests: str = TESTS) -> Path:
    for name, text in {
        "src/idness/__init__.py": "",
        "src/idness/maths.py": CODE,
        "tests/test_maths.py": tests,
        "tools/mutants.toml": f'["maths.py"]\ntests = "tests/test_maths.py"\nmutants = [{", ".join(mutants)}]\n',
        "results/.keep": "",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_what_is_noticed_and_what_is_equivalent_is_written_down(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tree(tmp_path, NOTICED, SAME)
    assert tool.main([], root) == 0
    page = (root / "results" / "mutants.md").read_text()
    assert "2 mutations in 1 rooms (maths): 1 noticed, 1 equivalent, 0 survived." in page
    assert "`x + x` → `x - x` | doubling | `tests/test_maths.py::test_double` |" in page
    assert "equivalent: doubling either way |" in page
    assert (root / "src/idness/maths.py").read_text() == CODE
    # A second run takes all that from the first, as long as nothing has changed.
    capsys.readouterr()
    assert tool.main([], root) == 0
    assert capsys.readouterr().out == "2 mutations, 0 wrong\n"


def test_what_survives_and_what_is_wrongly_called_equivalent_fails(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tree(tmp_path, NOTICED, SURVIVES, WRONGLY_SAME)
    assert tool.main(["--jobs", "2"], root) == 1
    out = capsys.readouterr().out
    assert "SURVIVED       2 maths.py (the sign of 0): no test noticed" in out
    assert "NOT EQUIVALENT 3 maths.py (doubling): tests/test_maths.py::test_double" in out
    assert tool.main(["--only", "1"], root) == 0
    assert tool.main(["--only", "nowhere"], root) == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ('{ find = "x + y", put = "x", breaks = "b" }', "got 0 times: x + y"),
        ('{ find = "return", put = "yield", breaks = "b" }', "got 2 times: return"),
        ('{ find = "x + x", put = "x +", breaks = "b" }', "is no longer valid Python"),
        ('{ find = "x + x", put = "x", breaks = "b", tests = "tests/test_gone.py" }', "no tests/test_gone.py"),
    ],
)
def test_a_list_that_does_not_fit_the_code_is_told(
    tool: ModuleType, tmp_path: Path, wrong: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool.main(["--check"], tree(tmp_path, NOTICED, wrong)) == 2
    assert message in capsys.readouterr().err


def test_the_list_fits_the_code_and_covers_every_room(tool: ModuleType) -> None:
    listed = tool.read_list(ROOT / "tools" / "mutants.toml")
    tool.check_list(listed)
    assert len(listed) >= 200
    package = ROOT / "src" / "idness"
    rooms = {path.name for path in package.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert {mutant.room for mutant in listed} == rooms | {"metrics", "intervals", "cluster"}

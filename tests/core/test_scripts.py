from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from idness.core.errors import ScriptError
from idness.core.scripts import Script


def named(text: object) -> Script:
    found = Script.named(str(text))
    assert found is not None
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("")
    (tmp_path / "parts" / "layers.py").write_text("SIZE = 3\n")
    (tmp_path / "numbers_of_mine.py").write_text("from parts.layers import SIZE\n")
    (tmp_path / "late_of_mine.py").write_text("EXTRA = 10\n")
    (tmp_path / "net.py").write_text(
        "from numbers_of_mine import SIZE\n\nready = [SIZE]\n\n\n"
        "def make(width=1, *, name='x'):\n    from late_of_mine import EXTRA\n\n    return [SIZE + EXTRA] * width, name\n"
    )
    return tmp_path


def test_what_is_written_is_read_and_other_texts_are_no_script() -> None:
    found = named("~/some folder/net.py:make(width=2, sizes=[1, 2], file='a:b')")
    assert (found.file, found.name) == (Path("~/some folder/net.py").expanduser(), "make")
    assert found.options == {"width": 2, "sizes": [1, 2], "file": "a:b"}
    assert found.call == "make(width=2, sizes=[1, 2], file='a:b')"
    for text in ("timm:resnet18", "net.py", "net.py:", "scale(percentile=85)", "net.py:2x", "net.txt:make"):
        assert Script.named(text) is None
    for text in ("net.py:make(2)", "net.py:make(a=[)", "net.py:make(=3)"):
        with pytest.raises(
            ScriptError, match=r"arguments are written as net\.py:make\(argument=value, \.\.\.\), got 'net"
        ):
            _ = named(text).options


def test_a_file_imports_its_neighbours_and_takes_arguments(folder: Path) -> None:
    before = list(sys.path)
    assert named(f"{folder}/net.py:make").make(list) == ([13], "x")
    assert named(f"{folder}/net.py:make(width=2, name=y)").make(list) == ([13, 13], "y")
    assert named(f"{folder}/net.py:ready").make(list) == [3]
    assert sys.path == before


def test_scripts_with_neighbours_of_the_same_name_keep_apart_and_changes_are_seen(folder: Path) -> None:
    other = folder / "other"
    other.mkdir()
    (other / "numbers_of_mine.py").write_text("SIZE = 70\n")
    (other / "net.py").write_text(
        (folder / "net.py").read_text().replace("late_of_mine", "numbers_of_mine").replace("EXTRA", "SIZE")
    )
    first = named(f"{folder}/net.py:make")
    assert first.make(list)[0] == [13]
    assert named(f"{other}/net.py:make").make(list)[0] == [140]
    (folder / "parts" / "layers.py").write_text("SIZE = 3000\n")
    assert first.make(list)[0] == [3010]


def test_its_identity_is_of_the_call_and_all_the_code(folder: Path) -> None:
    script, other = named(f"{folder}/net.py:make"), named(f"{folder}/net.py:make(width=2)")
    script.make(list)
    known = script.identity()
    listed = {Path(file).relative_to(folder).as_posix() for file in script.sources()}
    assert listed == {"net.py", "numbers_of_mine.py", "parts/__init__.py", "parts/layers.py", "late_of_mine.py"}
    other.make(list)
    assert other.identity() != known
    (folder / "late_of_mine.py").write_text("EXTRA = 1000\n")
    script.make(list)
    assert script.identity() != known


def test_what_the_program_itself_imported_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_the_program.py").write_text("SIZE = 3\n")
    (tmp_path / "net.py").write_text("from of_the_program import SIZE\n\ndef make():\n    return SIZE\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    mine = importlib.import_module("of_the_program")
    script = named(f"{tmp_path}/net.py:make")
    for _ in range(2):
        assert script.make(list) == 3
    assert sys.modules.pop("of_the_program") is mine
    assert len(script.sources()) == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("nothing", r"has no 'nothing'; it has make, fails"),
        (
            "make(width=1, wide=2)",
            r"net\.py:make\(width=1, wide=2\): got an unexpected keyword argument 'wide'; it takes \(width, depth=1\)",
        ),
        ("make", r"missing a required argument: 'width'; .* written as net\.py:make\(argument=value\)"),
        ("number", r"net\.py:number: must be something to call, got int"),
        ("fails", r"net\.py:fails: fails at line 8 with ZeroDivisionError: division by zero"),
    ],
)
def test_what_does_not_work_is_said_in_one_line(tmp_path: Path, call: str, message: str) -> None:
    (tmp_path / "net.py").write_text(
        "number = 7\n\ndef make(width, depth=1):\n    return width\n\n\ndef fails():\n    return 1 / 0\n"
    )
    with pytest.raises(ScriptError, match=message):
        named(f"{tmp_path}/net.py:{call}").make(list)


def test_a_file_that_is_not_there_or_does_not_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match=r"no file at .*absent\.py \(No such file or directory\)"):
        named(f"{tmp_path}/absent.py:make").make(list)
    (tmp_path / "broken.py").write_text("import torch\n\nimport nothing_of_that_name\n")
    with pytest.raises(
        ScriptError, match=r"cannot be imported; it fails at line 3 with ModuleNotFoundError: No module named"
    ):
        named(f"{tmp_path}/broken.py:make").make(list)
    (tmp_path / "typo.py").write_text("def make(:\n")
    with pytest.raises(ScriptError, match=r"cannot be imported; it fails with SyntaxError: .*line 1"):
        named(f"{tmp_path}/typo.py:make").make(list)

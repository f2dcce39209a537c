from __future__ import annotations

import sys
from pathlib import Path

import pytest

from idness.core.errors import ModelError, OptionError, ScriptError
from idness.core.scripts import Script, approve, approved


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
        with pytest.raises(OptionError, match=r"expected name or name\(option=value, \.\.\.\), got"):
            _ = named(text).options


def test_its_identity_is_of_the_call_and_the_file(folder: Path) -> None:
    known = named(f"{folder}/net.py:make").identity()
    assert named(f"{folder}/net.py:make(width=2)").identity() != known
    (folder / "net.py").write_text((folder / "net.py").read_text() + "\n")
    assert named(f"{folder}/net.py:make").identity() != known


def test_a_file_imports_its_neighbours_and_takes_arguments(folder: Path) -> None:
    before = list(sys.path)
    assert named(f"{folder}/net.py:make").make(list) == ([13], "x")
    assert named(f"{folder}/net.py:make(width=2, name=y)").make(list) == ([13, 13], "y")
    assert named(f"{folder}/net.py:ready").make(list) == [3]
    assert sys.path == before


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("nothing", r"has no 'nothing'; it has make, fails"),
        ("make(width=1, wide=2)", r"make\(width=1, wide=2\): fails .* got an unexpected keyword argument 'wide'"),
        ("number", r"net\.py:number: must be callable, got int"),
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


CODE = "def make(): ...\n"


def refused(spec: str, why: str = "have not run with idness in its present form; read it, then pass model=") -> None:
    with pytest.raises(ModelError, match=why):
        approved(spec)


def test_a_file_runs_once_its_user_has_named_it_and_again_while_it_is_unchanged(tmp_path: Path) -> None:
    for folder in ("mine", "theirs"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "net.py").write_text(CODE)
    file = tmp_path / "mine" / "net.py"
    refused(f"{file}:make")
    approve(f"{file}:make")
    assert approved(f"{file}:make") == f"{file}:make"
    refused(f"{tmp_path}/theirs/net.py:make")  # the same code elsewhere may import other files
    for call in ("other", "make(path='/etc')"):  # a forged guard must not choose what is called, nor with what
        refused(f"{file}:{call}")
    file.write_text(CODE + "import os\n")
    for spec in (f"{file}:make", "net.py:make"):
        refused(spec, f"in its present form; read it, then pass model='{file}:make'")
    file.write_text(CODE)
    approved(f"{file}:make")
    (listed,) = (tmp_path / "state").rglob("models.json")
    listed.write_text("{")  # a damaged list approves nothing
    refused(f"{file}:make")
    assert approved("torchvision:resnet18") == "torchvision:resnet18"
    refused(f"{tmp_path}/gone.py:make", "does not exist")


@pytest.mark.fault(
    "a guard names its Python file without a folder", does="uses the file with the same code that the user has run"
)
def test_a_file_without_a_folder_is_found_among_those_that_were_run(tmp_path: Path) -> None:
    for folder, width in (("one", 2), ("two", 3), ("never run", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a_net.py").write_text(f"from torch import nn\n\nnet = nn.Linear(2, {width})\n")
    specs = [f"{tmp_path / folder / 'a_net.py'}:net" for folder in ("one", "two")]
    for spec in specs:
        approve(spec)
    for spec in specs:
        script = Script.named(spec)
        assert script is not None
        assert approved("a_net.py:net", code=script.identity()) == spec
    for spec in ("a_net.py:other", "another.py:net", f"{tmp_path / 'never run' / 'a_net.py'}:net"):
        refused(spec)
    for folder in ("one", "two"):
        (tmp_path / folder / "a_net.py").unlink()
    refused("a_net.py:net", "a_net.py:net, which does not exist; pass model='path/to/file.py:FUNCTION'")

from __future__ import annotations

from pathlib import Path

import pytest

from idness.core.errors import ModelError
from idness.core.scripts import Script
from idness.networks import trust
from idness.networks.loading import load_model

CODE = "def make(): ...\n"


def test_a_file_is_trusted_once_its_user_has_named_it(tmp_path: Path) -> None:
    spec = f"{tmp_path / 'net.py'}:make"
    (tmp_path / "net.py").write_text(CODE)
    with pytest.raises(ModelError, match="have not run with idness in its present form"):
        trust.check(spec)
    trust.remember(spec)
    trust.check(spec)


def test_an_edited_file_must_be_named_anew(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(CODE)
    trust.remember(f"{file}:make")
    file.write_text(CODE + "import os\n")
    with pytest.raises(ModelError, match="in its present form"):
        trust.check(f"{file}:make")
    file.write_text(CODE)
    trust.check(f"{file}:make")
    for call in (
        "other",
        "make(path='/etc')",
    ):  # a forged guard must not choose what of the file is called, nor with what
        with pytest.raises(ModelError, match="in its present form"):
            trust.check(f"{file}:{call}")


def test_a_changed_neighbour_must_be_looked_at_too(tmp_path: Path) -> None:
    (tmp_path / "beside_the_net.py").write_text("WIDTH = 2\n")
    (tmp_path / "net.py").write_text(
        "from beside_the_net import WIDTH\nfrom torch import nn\n\nnet = nn.Linear(2, WIDTH)\n"
    )
    spec = f"{tmp_path / 'net.py'}:net"
    load_model(spec)
    trust.remember(spec)
    trust.check(spec)
    (tmp_path / "beside_the_net.py").write_text("WIDTH = 3\n")
    with pytest.raises(ModelError, match="in its present form"):
        trust.check(spec)


def test_the_same_code_elsewhere_is_another_file(tmp_path: Path) -> None:
    for folder in ("mine", "theirs"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "net.py").write_text(CODE)
    trust.remember(f"{tmp_path / 'mine' / 'net.py'}:make")
    with pytest.raises(ModelError, match="in its present form"):
        trust.check(f"{tmp_path / 'theirs' / 'net.py'}:make")


def test_several_files_are_remembered(tmp_path: Path) -> None:
    specs = [f"{tmp_path / f'{name}.py'}:make" for name in "abc"]
    for spec in specs:
        Path(spec.rpartition(":")[0]).write_text(CODE)
        trust.remember(spec)
    for spec in specs:
        trust.check(spec)


def test_what_is_no_python_file_needs_no_trust_and_what_is_gone_is_told(tmp_path: Path) -> None:
    trust.check("torchvision:resnet18")
    with pytest.raises(ModelError, match="there is no such file"):
        trust.check(f"{tmp_path / 'gone.py'}:make")


def test_a_damaged_list_trusts_nothing(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(CODE)
    trust.remember(f"{tmp_path / 'net.py'}:make")
    (listed,) = (tmp_path / "state").rglob("models.json")
    listed.write_text("{")
    with pytest.raises(ModelError, match="in its present form"):
        trust.check(f"{tmp_path / 'net.py'}:make")


@pytest.mark.fault("a model's Python file changes between the look at it and its run", does="refuses to run it")
@pytest.mark.parametrize("which", ["net.py", "beside_that_net.py"])
def test_what_was_checked_is_what_runs(tmp_path: Path, which: str) -> None:
    (tmp_path / "beside_that_net.py").write_text("WIDTH = 2\n")
    (tmp_path / "net.py").write_text(
        "from beside_that_net import WIDTH\nfrom torch import nn\n\nnet = nn.Linear(2, WIDTH)\n"
    )
    spec = f"{tmp_path / 'net.py'}:net"
    load_model(spec)
    trust.remember(spec)
    assert trust.check(spec) == spec
    changed = tmp_path / which
    changed.write_text(changed.read_text() + "raise SystemExit('this must not run')\n")
    with pytest.raises(ModelError, match="has changed since it was looked at"):
        load_model(spec)


@pytest.mark.fault(
    "a guard names its Python file without a folder", does="takes the file of the same code that its user has run"
)
def test_a_file_without_a_folder_is_found_among_those_that_were_run(tmp_path: Path) -> None:
    for folder, width in (("one", 2), ("two", 3), ("never run", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a_net.py").write_text(f"from torch import nn\n\nnet = nn.Linear(2, {width})\n")
    specs = [f"{tmp_path / folder / 'a_net.py'}:net" for folder in ("one", "two")]
    for spec in specs:
        load_model(spec)
        trust.remember(spec)
    for spec in specs:
        script = Script.named(spec)
        assert script is not None
        assert trust.check("a_net.py:net", code=script.identity()) == spec
    for spec in ("a_net.py:other", "another.py:net", f"{tmp_path / 'never run' / 'a_net.py'}:net"):
        with pytest.raises(ModelError, match="have not run with idness"):
            trust.check(spec)


@pytest.mark.fault("a compiled copy (.pyc) beside a model's file holds other code", does="runs the file itself")
def test_compiled_copies_are_never_run(tmp_path: Path) -> None:
    import importlib.util
    import os
    import py_compile

    beside, net = tmp_path / "beside_pyc.py", tmp_path / "net.py"
    beside.write_text("raise SystemExit('this must not run')\n")
    py_compile.compile(str(beside), doraise=True)
    made = beside.stat()
    beside.write_text("WIDTH = 2".ljust(made.st_size - 1) + "\n")
    os.utime(beside, ns=(made.st_atime_ns, made.st_mtime_ns))  # as the compiled copy remembers it
    assert Path(importlib.util.cache_from_source(str(beside))).is_file()
    net.write_text("from beside_pyc import WIDTH\nfrom torch import nn\n\nnet = nn.Linear(2, WIDTH)\n")
    assert load_model(f"{net}:net").out_features == 2

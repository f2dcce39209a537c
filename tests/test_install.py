"""What people install: the sdist, the wheel made of it, and the core of idness with nothing but what it requires."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from colour_world import write_folder

from tests.code_blocks import ROOT
from tests.pictures import world

BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"
WITHOUT_EXTRAS = '''
"""Lets only the core's requirements, and what they require, be imported, as in an environment without extras."""
import re, sys
from importlib import metadata
from importlib.machinery import PathFinder

def closure(names):
    found, ahead = set(), list(names)
    while ahead:
        name = re.split(r"[ <>=!~;(\\[]", ahead.pop(), maxsplit=1)[0].lower().replace("_", "-")
        if name in found:
            continue
        try:
            wanted = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        found.add(name)
        ahead += [each for each in wanted if "extra ==" not in each]
    return found

allowed = closure(["idness"]) | {"pip", "setuptools"}
owners = {name: {each.lower().replace("_", "-") for each in some} for name, some in metadata.packages_distributions().items()}
hidden = {name for name, some in owners.items() if not some & allowed}

class Bare(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else super().find_spec(name, path, target)

sys.meta_path[:] = [Bare if finder is PathFinder else finder for finder in sys.meta_path]
'''


def run(*words: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    given = [str(word) for word in words]
    return subprocess.run(given, cwd=cwd, env=environment or None, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, built from a copy of the tree, and the wheel that is built from the sdist alone."""
    folder = tmp_path_factory.mktemp("built")
    tree = folder / "tree"
    tree.mkdir()
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    done = run(sys.executable, "-c", BUILD, "build_sdist", folder, cwd=tree)
    assert done.returncode == 0, done.stderr
    sdist = folder / done.stdout.strip().splitlines()[-1]
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    [source] = (folder / "unpacked").iterdir()
    done = run(sys.executable, "-c", BUILD, "build_wheel", folder, cwd=source)
    assert done.returncode == 0, done.stderr
    return sdist, folder / done.stdout.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def bare(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's content, in which nothing of the extras can be imported."""
    folder = tmp_path_factory.mktemp("bare")
    with zipfile.ZipFile(built[1]) as wheel:
        wheel.extractall(folder)
    (folder / "without_extras.py").write_text(WITHOUT_EXTRAS)
    return folder


def test_the_wheel_of_the_sdist_holds_every_file_of_the_package(built: tuple[Path, Path]) -> None:
    ours = {
        path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src" / "idness").rglob("*") if path.is_file()
    }
    with zipfile.ZipFile(built[1]) as wheel:
        packed = set(wheel.namelist())
    assert {name for name in ours if "__pycache__" not in name} - packed == set()
    assert any(name.endswith("licenses/LICENSE") for name in packed)


STEPS = """
import without_extras, io, sys
from contextlib import redirect_stdout, redirect_stderr
import idness
assert idness.__file__.startswith(sys.argv[1]), idness.__file__
from idness.cli import main

def command(*words):
    sys.argv = ["idness", *words]
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try: main()
        except SystemExit as end: code = end.code
    return code, out.getvalue(), err.getvalue()

def good(*words):
    code, out, err = command(*words)
    assert code == 0, (words, err)
    return out

assert "scale" in good("list")
net = ["net.py:make", "--weights", "weights.safetensors"]
assert "★" in good("bench", "mine.toml", "--model", *net, "--methods", "ebo,msp", "--out", "results")
assert "use" in good("doctor", *net, "--data", "colours", "--limit", "40").lower()
good("calibrate", *net, "--data", "colours", "--method", "ebo", "-o", "guard")
assert "ID-ness" in good("score", "guard", "colours")
for words, extra in (
    (["serve", "guard"], "serve"), (["export", "guard", "-o", "guard.onnx"], "onnx"), (["bench", "--model", "timm:resnet18"], "models"),
    (["train", "--data", "colours", "--out", "run", "--size", "16"], "train"),
):
    code, out, err = command(*words)
    assert code == 2, (words, out, err)
    assert f"pip install 'idness[{extra}]'" in err, (words, err)
"""


def test_the_core_alone_measures_decides_and_names_the_extra_that_is_missing(bare: Path, tmp_path: Path) -> None:
    world(tmp_path)
    write_folder(tmp_path / "colours", 10)
    done = run(sys.executable, "-W", "error::ResourceWarning", "-c", STEPS, bare, cwd=tmp_path, PYTHONPATH=str(bare),
               OMP_NUM_THREADS="1", XDG_STATE_HOME=str(tmp_path), XDG_CACHE_HOME=str(tmp_path), PATH="/usr/bin:/bin")  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


PYTHONS = ("python3.11", "python3.12", "python3.13")


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("python", PYTHONS)
def test_the_wheel_works_in_an_empty_environment(python: str, built: tuple[Path, Path], tmp_path: Path) -> None:
    """Installs torch and the rest from the package index: some gigabytes, some minutes."""
    if run(python, "--version", cwd=tmp_path, **os.environ).returncode != 0:
        pytest.skip(f"no {python} here")
    bare_environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL"))}
    bare_environment |= {"OMP_NUM_THREADS": "1", **dict.fromkeys(("XDG_STATE_HOME", "XDG_CACHE_HOME"), str(tmp_path))}

    def done(*words: object) -> str:
        result = run(*words, cwd=tmp_path, **bare_environment)
        assert result.returncode == 0, (words, result.stdout[-2000:], result.stderr[-2000:])
        return result.stdout

    done(python, "-m", "venv", "empty")
    pip = [tmp_path / "empty" / "bin" / "python", "-m", "pip", "--disable-pip-version-check"]
    done(*pip, "install", "--quiet", "--no-compile", built[1])
    assert "No broken requirements found" in done(*pip, "check")
    world(tmp_path)
    write_folder(tmp_path / "colours", 10)
    steps = STEPS.replace("import without_extras, ", "import ")
    done(tmp_path / "empty" / "bin" / "python", "-c", steps, tmp_path / "empty")
    assert "★" in done(tmp_path / "empty" / "bin" / "idness", "bench", "--methods", "msp,ebo", "--quiet")
    shutil.rmtree(tmp_path / "empty")


def test_the_pythons_that_are_named_are_those_that_are_allowed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11"
    named = [line.rpartition(" ")[2] for line in project["classifiers"] if "Python :: 3." in line]
    assert [f"python{version}" for version in named] == list(PYTHONS)


@pytest.mark.fault(
    "the wheel bundles images under other licences than the code", does="names them all and includes their texts"
)
def test_the_licence_field_names_the_images_licences_too() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = set(project["license"].split(" AND "))
    cards = [file.read_text() for file in (ROOT / "src/idness/data").glob("*/DATA_CARD.md")]
    said = {
        "MIT": "MIT", "CC BY 4.0": "CC-BY-4.0", "CC BY-SA 3.0": "CC-BY-SA-3.0", "CC BY-SA 4.0": "CC-BY-SA-4.0",
        "GPL, version 2 or later": "GPL-2.0-or-later", "CIFAR-10": "LicenseRef-CIFAR-10", "CC BY 2.0": "CC-BY-2.0",
        "BSD-3-Clause": "BSD-3-Clause", "dedicated to the public domain": "CC-PDDC",
    }  # fmt: skip
    assert all(any(text in card for card in cards) for text in said)
    assert names == {"Apache-2.0", *said.values()}
    bundled = {file.name for file in (ROOT / "src/idness/data").glob("*/LICENSE*")}
    listed = {file.name for pattern in project["license-files"] for file in ROOT.glob(pattern)}
    assert bundled | {"LICENSE", "DATA_CARD.md"} <= listed

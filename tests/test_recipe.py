"""The recipe of CONTRIBUTING.md, followed to the letter in a copy of the tree, gives a method that passes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.code_blocks import ROOT, blocks_of


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the tree, and add the three files as the recipe has them."""
    place = tmp_path_factory.mktemp("recipe")
    for folder in ("src", "tests", "tools"):
        shutil.copytree(ROOT / folder, place / folder, ignore=shutil.ignore_patterns("__pycache__", "*.webp"))
    for name in ("pyproject.toml", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, place)
    blocks = {
        block.goes_into: block.text for block in blocks_of((ROOT / "CONTRIBUTING.md").read_text()) if block.goes_into
    }
    listed = "src/idness/methods/__init__.py"
    assert set(blocks) == {"src/idness/methods/foo.py", listed, "tests/methods/test_foo.py"}
    before, start, after = (ROOT / listed).read_text().partition("\nNAMES = ")
    blocks[listed] = f"{before}    {blocks[listed]}{start}{after}"
    for name, text in blocks.items():
        (place / name).write_text(text)
    run(place, "-m", "ruff", "check", "--fix", "--quiet", listed)
    run(place, "-m", "ruff", "format", "--quiet", listed)
    return place


def run(place: Path, *command: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(place / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=place, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_the_method_of_the_recipe_passes_the_contract(tree: Path) -> None:
    told = run(
        tree, "-m", "pytest", "-k", "foo", "tests/test_contract.py", "tests/methods", "tests/test_architecture.py"
    )
    assert int(told.split(" passed")[0].split()[-1]) >= 24


def test_the_method_of_the_recipe_is_tidy_and_listed(tree: Path) -> None:
    run(tree, "-m", "ruff", "check", "src/idness/methods", "tests/methods")
    run(tree, "-m", "ruff", "format", "--check", "src/idness/methods", "tests/methods")
    listed = json.loads(run(tree, "-c", "from idness.cli import main; main()", "list", "--json"))
    foo = next(entry for entry in listed if entry["name"] == "foo")
    assert foo["options"] == {"power": 1.0}
    assert foo["paper"] == 'Foo -- Author et al., "Title", Venue Year.'

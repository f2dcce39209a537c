"""The tutorials run, and show what they are kept with."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nbclient")
sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import notebooks

sys.path.pop(0)

NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with notebooks.one_kernel(tmp_path_factory.mktemp("tutorials")) as runner:
        yield runner


def shown(cell: Any) -> list[tuple[str, str]]:
    """Give what a cell shows: its kinds, and the words and numbers of those that have some."""
    found = []
    for output in cell.get("outputs", ()):
        for kind, content in output.get("data", {"text": output.get("text", "")}).items():
            found.append((kind, "" if kind.startswith("image/") else content))
    return found


@pytest.mark.parametrize("name", notebooks.tutorials())
def test_a_tutorial_runs_and_shows_what_it_is_kept_with(name: str, run: Any) -> None:
    kept = notebooks.read(notebooks.tutorials()[name])
    done = run(notebooks.read(notebooks.tutorials()[name]))
    pictures = 0
    for old, new in zip(kept.cells, done.cells, strict=True):
        before, after = shown(old), shown(new)
        assert [kind for kind, _ in before] == [kind for kind, _ in after], old.source
        pictures += sum(kind.startswith("image/") for kind, _ in after)
        for (_, was), (_, now) in zip(before, after, strict=True):
            assert NUMBER.sub("#", was) == NUMBER.sub("#", now)
            numbers = [float(each) for each in NUMBER.findall(now)]
            # Other processors round otherwise.
            assert numbers == pytest.approx([float(each) for each in NUMBER.findall(was)], rel=0.02, abs=0.02)
    assert pictures >= 1

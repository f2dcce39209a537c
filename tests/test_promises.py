"""The statistical promises hold in simulation: a few repetitions here, all of them in `make long`."""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "tools"))
        return importlib.import_module("promises")


def test_a_few_repetitions_keep_every_promise(tool: ModuleType, tmp_path: Path) -> None:
    rows = [
        *tool.false_alarms(tool.network(tmp_path), tmp_path, 5),
        *tool.coverage(20),
        *tool.paired(4),
        *tool.drift(1),
    ]
    assert [row for row in rows if not row.holds] == []
    wide = [row for row in rows if row.setting == "1000 calibration images, 50 % OOD"]
    assert [row.measured for row in wide if row.promise.startswith("drift noticed")] == [1.0]


def test_a_broken_promise_shows(tool: ModuleType) -> None:
    rows = [
        tool.at_most("false alarms", "x", 0.05, [0.09, 0.1, 0.11]),
        tool.at_least("coverage", "y", [True, False] * 50),
    ]
    assert not any(row.holds for row in rows)
    assert tool.table(rows).count("**no**") == 2


def test_the_page_is_that_of_the_results(tool: ModuleType) -> None:
    rows = [tool.Row(**row) for row in json.loads((ROOT / "results" / "promises.json").read_text())]
    assert tool.table(rows) == (ROOT / "results" / "promises.md").read_text()
    assert {asdict(row)["promise"] for row in rows} >= {"false alarms", "coverage of the interval", "false drift alarm"}


@pytest.mark.long
def test_every_promise_holds(tool: ModuleType) -> None:
    assert [row for row in tool.simulate() if not row.holds] == []

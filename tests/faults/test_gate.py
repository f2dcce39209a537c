"""The list of faults is whole, current, and every fault on it has a test."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("faults", ROOT / "tools" / "faults.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["faults"] = module
    spec.loader.exec_module(module)
    return module


def test_every_fault_has_a_test_and_the_page_is_current(tool: ModuleType) -> None:
    found = tool.faults()
    assert len(found) > 100
    assert tool.missing(found) == []
    assert tool.page(found) == (ROOT / "docs" / "faults.md").read_text(), "run python tools/faults.py"
    assert len({fault.what for fault in found}) == len(found)


def test_a_fault_without_its_test_is_noticed(tool: ModuleType) -> None:
    lost = tool.Fault("Data", "x", "y", "tests/faults/test_gate.py::test_that_is_not_there")
    nowhere = tool.Fault("Data", "x", "y", "tests/nowhere.py")
    assert tool.missing([lost, nowhere]) == [lost.test, nowhere.test]


def test_results_say_what_failed_and_carry_figures(tool: ModuleType, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        "<testsuites><testsuite>"
        '<testcase file="a.py" name="test_a[1]"><properties><property name="memory" value="3 %"/></properties></testcase>'
        '<testcase file="a.py" name="test_a[2]"><failure/></testcase>'
        '<testcase file="a.py" name="test_b"><skipped/></testcase></testsuite></testsuites>'
    )
    faults = [tool.Fault("Data", name, "", f"a.py::test_{name}") for name in "ab"] + [
        tool.Fault("Data", "c", "", "a.py")
    ]
    text = tool._result(faults, [report])
    assert "3 faults, of which 0 are shown" in text
    assert "| a | 1 | 1 | 0 |" in text
    assert "| b | 0 | 0 | 1 |" in text
    assert "| c | 1 | 1 | 1 |" in text
    assert "| memory | 3 % |" in text
    assert "was stopped" not in text
    lost = [*faults, tool.Fault("Data", "d", "", "a.py::test_d")]
    assert "the tests of 1 faults" in tool._result(lost, [report])

"""Lists every fault that is tested, as docs/faults.md, or runs all their tests and writes results/faults.md (--run)."""

from __future__ import annotations

import argparse
import ast
import os
import platform
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
LISTED = ROOT / "tests" / "faults" / "listed.toml"
PAGE, RESULT = ROOT / "docs" / "faults.md", ROOT / "results" / "faults.md"
ROOMS = {
    "serve": "Service", "guard": "Guards and verdicts", "data": "Data", "benchmark": "Benchmarks", "training": "Training",
    "core": "Files and processes", "activations": "Files and processes", "networks": "Networks", "faults": "Long runs",
    "cluster": "Clusters",
}  # fmt: skip
HEAD = """# Faults

What goes wrong, what idness does about it, and the test that shows it. This page is made of the tests by `python tools/faults.py`; `make
faults` runs all of them, the long ones too, and writes `results/faults.md`.
"""


@dataclass(frozen=True)
class Fault:
    """Holds what goes wrong, what is done about it, and where that is tested."""

    kind: str
    what: str
    does: str
    test: str
    long: bool = False


def faults() -> list[Fault]:
    """Find the faults that are marked and those that are listed."""
    return [*_listed(), *(fault for file in sorted((ROOT / "tests").rglob("test_*.py")) for fault in _marked(file))]


def _listed() -> Iterator[Fault]:
    for kind, entries in tomllib.loads(LISTED.read_text(encoding="utf-8")).items():
        for what, (does, test) in entries.items():
            yield Fault(kind, what, does, test)


def _marked(file: Path) -> Iterator[Fault]:
    """Read the marks of a test file without running it."""
    text = file.read_text(encoding="utf-8")
    if "mark.fault(" not in text:
        return
    for node in ast.parse(text).body:
        if not isinstance(node, ast.FunctionDef):
            continue
        names = [ast.unparse(mark.func if isinstance(mark, ast.Call) else mark) for mark in node.decorator_list]
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.fault":
                does = {keyword.arg: ast.literal_eval(keyword.value) for keyword in mark.keywords}["does"]
                kind = ROOMS.get(file.parent.name, "Other")
                place = file.relative_to(ROOT).as_posix()
                yield Fault(
                    kind, ast.literal_eval(mark.args[0]), does, f"{place}::{node.name}", "pytest.mark.long" in names
                )


def missing(found: list[Fault]) -> list[str]:
    """Name the tests of faults that are not there."""
    known: dict[str, set[str]] = {}
    gone = []
    for fault in found:
        file, _, name = fault.test.partition("::")
        if file not in known:
            path = ROOT / file
            body = ast.parse(path.read_text(encoding="utf-8")).body if path.is_file() else []
            known[file] = {node.name for node in body if isinstance(node, ast.FunctionDef)}
        if not known[file] or (name and name not in known[file]):
            gone.append(fault.test)
    return gone


def page(found: list[Fault]) -> str:
    """Write the faults as a page."""
    parts = [HEAD]
    for kind in dict.fromkeys(fault.kind for fault in found):
        rows = [fault for fault in found if fault.kind == kind]
        parts.append(f"\n## {kind}\n\n| what happens | what idness does | test |\n|---|---|---|\n")
        parts += [
            f"| {_cell(row.what)} | {_cell(row.does)} | `{row.test}`{' (long)' if row.long else ''} |\n" for row in rows
        ]
    return "".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def run(found: list[Fault], extra: list[str], *, resume: bool, only: list[str]) -> int:
    """Run the tests of every fault, one kind after the other, and write what came of it so far after each.

    Where only some kinds are named, what earlier runs found of the others stays in the result.
    """
    folder = ROOT / "build" / "faults"
    folder.mkdir(parents=True, exist_ok=True)
    code = 0
    for kind in only or dict.fromkeys(fault.kind for fault in found):
        report = folder / f"{kind.replace(' ', '-').lower()}.xml"
        if resume and report.is_file():
            continue
        report.unlink(missing_ok=True)
        tests = list(dict.fromkeys(fault.test for fault in found if fault.kind == kind))
        words = [
            sys.executable,
            "-m",
            "pytest",
            "-m",
            "",
            "-o",
            "junit_family=xunit1",
            f"--junitxml={report}",
            *extra,
            *tests,
        ]
        done = subprocess.run(words, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False).returncode
        code = code or done
        RESULT.write_text(_result(found, sorted(folder.glob("*.xml"))), encoding="utf-8")
        print(f"{kind}: wrote {RESULT.relative_to(ROOT)}", flush=True)
    return code


def _result(found: list[Fault], reports: list[Path]) -> str:
    cases: dict[str, list[ElementTree.Element]] = {}
    roots = [ElementTree.parse(report).getroot() for report in reports]
    seconds = sum(float(suite.get("time", 0)) for root in roots for suite in root.iter("testsuite"))
    for case in (case for root in roots for case in root.iter("testcase")):
        file, name = case.get("file", ""), case.get("name", "").partition("[")[0]
        for key in (f"{file}::{name}", file):
            cases.setdefault(key, []).append(case)
    counted = {fault.test: _counts(cases.get(fault.test, [])) for fault in found}
    total = [sum(count) for count in zip(*counted.values(), strict=True)]
    held = sum(1 for fault in found if counted[fault.test][0] and not counted[fault.test][1])
    lines = [
        "# Faults that were tried\n\n",
        f"{len(found)} faults, of which {held} are shown to be handled; {total[0]} cases passed, {total[1]} failed, {total[2]} were"
        f" skipped. Made by `make faults`: {seconds / 60:.0f} minutes, Python {platform.python_version()}, {os.cpu_count()} cores.\n",
    ]
    left = sum(not any(counted[fault.test]) for fault in found)
    if left:
        lines.append(
            f"\nThe run was stopped: the tests of {left} faults, with 0 in all columns, have not been run in it.\n"
        )
    figures = [(p.get("name", ""), p.get("value")) for case in _each(cases) for p in case.iter("property")]
    figures = [figure for figure in figures if not figure[0].startswith("hypothesis-statistics")]
    if figures:
        lines.append("\n## Figures of the long runs\n\n| what | value |\n|---|--:|\n")
        lines += [f"| {name} | {value} |\n" for name, value in figures]
    for kind in dict.fromkeys(fault.kind for fault in found):
        lines.append(f"\n## {kind}\n\n| what happens | passed | failed | skipped |\n|---|--:|--:|--:|\n")
        for fault in (fault for fault in found if fault.kind == kind):
            passed, failed, skipped = counted[fault.test]
            lines.append(f"| {_cell(fault.what)} | {passed} | {failed} | {skipped} |\n")
    return "".join(lines)


def _each(cases: dict[str, list[ElementTree.Element]]) -> Iterator[ElementTree.Element]:
    seen: set[int] = set()
    for case in (case for listed in cases.values() for case in listed):
        if id(case) not in seen:
            seen.add(id(case))
            yield case


def _counts(cases: list[ElementTree.Element]) -> tuple[int, int, int]:
    failed = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
    skipped = sum(case.find("skipped") is not None for case in cases)
    return len(cases) - failed - skipped, failed, skipped


def main() -> int:
    """Write the page, check it, or run the tests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail where docs/faults.md is not what the tests say")
    parser.add_argument("--run", action="store_true", help="run all tests, and write results/faults.md")
    parser.add_argument(
        "--resume", action="store_true", help="with --run, leave out the kinds that an earlier run has done"
    )
    parser.add_argument("--only", action="append", default=[], help="with --run, a kind to run; all if not given")
    given, extra = parser.parse_known_args()
    found = faults()
    strange = sorted(set(given.only) - {fault.kind for fault in found})
    if strange:
        print(f"no such kind: {', '.join(strange)}")
        return 1
    gone = missing(found)
    if gone:
        print("no such test: " + ", ".join(gone))
        return 1
    if given.check:
        current = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page(found)
        print(
            f"{len(found)} faults, each with its test"
            if current
            else "docs/faults.md is old: run python tools/faults.py"
        )
        return 0 if current else 1
    PAGE.write_text(page(found), encoding="utf-8")
    return run(found, extra, resume=given.resume, only=given.only) if given.run else 0


if __name__ == "__main__":
    sys.exit(main())

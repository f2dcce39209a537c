"""Change one line at a time and check that a test fails: python tools/mutants.py [--only ROOM, FILE or NUMBER] [--jobs N]

`tools/mutants.toml` lists the lines, their replacements and the tests that should fail. Each mutation is applied in a copy
of the tree; a run of the whole list writes `results/mutants.md`. It fails if a mutation survives that is not marked as
equivalent with a reason, if a marked one makes a test fail, or if the list does not match the code. An interrupted run
can be continued until a file changes. The test that caught a mutation in the last whole run is run first.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path("src/idness")
COPIED = ("src", "tests", "tools", "docs", "examples", "results", "pyproject.toml", "Makefile", "README.md")
PAGE = Path("results/mutants.md")
SECONDS = 900
"""Timeout of the tests of a mutation, which may make a loop endless; tests normally take a small part of this."""
PRELOADED = ["pytest", "torch", "torchvision", "scipy.stats", "matplotlib.pyplot", "PIL.Image", "typer", "pydantic"]
"""Modules imported once by the server process from which test processes are forked."""


class ListError(Exception):
    """The list of mutations is invalid, or the tests fail without any mutation."""


@dataclass(frozen=True)
class Mutant:
    """A line, its replacement, and the tests that should fail."""

    number: int
    file: str
    find: str
    put: str
    breaks: str
    tests: tuple[str, ...]
    equivalent: str = ""

    @property
    def room(self) -> str:
        """The subpackage of the file; a module in the root of the package counts as one."""
        return Path(self.file).with_suffix("").parts[0]

    @property
    def key(self) -> str:
        """An identifier that does not depend on the number of the mutant."""
        return hashlib.sha256(repr((self.file, self.find, self.put, self.tests)).encode()).hexdigest()[:16]

    def mutated(self, root: Path) -> str:
        """Return the text of the file with the mutation."""
        path = root / PACKAGE / self.file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if text.count(self.find) != 1 or "\n" in self.find + self.put:
            raise ListError(f"must be on one line, once in the file, got {text.count(self.find)} times: {self.find}")
        return text.replace(self.find, self.put)

    def cells(self) -> str:
        """Return the cells that describe the mutant on the page of results."""
        change = f"`{cell(self.find)}` → `{cell(self.put)}`" if self.put else f"without `{cell(self.find)}`"
        return f"| {self.room} | {self.file} | {change} | {cell(self.breaks)} |"

    def wrong(self, noticed: str) -> str:
        """Return why an outcome is wrong; empty if it is as expected."""
        expected = bool(noticed) != bool(self.equivalent)
        return "" if expected else "NOT EQUIVALENT" if noticed else "SURVIVED"

    def line(self, noticed: str) -> str:
        """Return one line for the terminal."""
        told = noticed or self.equivalent or "no test noticed"
        return f"{self.wrong(noticed) or 'ok':14} {self.number} {self.file} ({self.breaks}): {told}"


def read_list(path: Path) -> list[Mutant]:
    """Return the list of mutants, numbered from 1 in order."""
    found: list[Mutant] = []
    for file, entry in tomllib.loads(path.read_text(encoding="utf-8")).items():
        for each in entry["mutants"]:
            tests = each.pop("tests", entry["tests"])
            tests = (tests,) if isinstance(tests, str) else tuple(tests)
            found.append(Mutant(number=len(found) + 1, file=file, tests=tests, **each))
    return found


def check_list(mutants: Sequence[Mutant], root: Path = ROOT) -> None:
    """Raise if the list does not match the code, naming all mismatches."""
    wrong = []
    for mutant in mutants:
        name = f"{mutant.number} {mutant.file} ({mutant.breaks})"
        try:
            compile(mutant.mutated(root), mutant.file, "exec")
        except ListError as error:
            wrong.append(f"{name}: {error}")
        except SyntaxError:
            wrong.append(f"{name}: is no longer valid Python")
        for file, _, test in (node.partition("::") for node in mutant.tests):
            path = root / file
            if not path.exists() or (test and f"def {test.partition('[')[0]}(" not in path.read_text(encoding="utf-8")):
                wrong.append(f"{name}: no {file} {test}")
    if wrong:
        raise ListError("the list of mutations does not fit the code:\n" + "\n".join(wrong))


class FirstFailure:
    """A pytest plug-in that records the first test or file that fails."""

    name = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed:
            self.name = self.name or report.nodeid

    pytest_collectreport = pytest_runtest_logreport


def child(copy: Path, tests: Sequence[str], answer: Connection) -> None:
    """Run tests in a copy, in a separate process, and send the exit code and the first failure."""
    os.setsid()
    os.chdir(copy)
    os.environ |= {"PYTHONPATH": str(copy / "src"), "CI": "1"}
    sys.path.insert(0, str(copy / "src"))
    # No bytecode is written, since mutations of equal length within the same second could not be distinguished.
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    failure = FirstFailure()
    code = int(pytest.main(["-x", "--tb=no", "-p", "no:xdist", f"--rootdir={copy}", *tests], [failure]))
    import idness

    if not Path(idness.__file__).resolve().is_relative_to(copy.resolve()):
        code, failure.name = -1, f"the tests imported {idness.__file__}"
    answer.send((code, failure.name))


def run_tests(copy: Path, tests: Sequence[str]) -> str:
    """Run tests in a copy until the first failure and return its name; empty if all pass."""
    context = multiprocessing.get_context("forkserver")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(copy, tests, sender))
    process.start()
    sender.close()
    try:
        code, failed = receiver.recv() if receiver.poll(SECONDS) else (1, f"no end within {SECONDS} s")
    except EOFError:
        code, failed = 1, "the process of the tests crashed"
    process.kill()
    process.join()
    if code not in (0, 1, 2):
        raise ListError(f"pytest {' '.join(tests)} ended with {code}: {failed}")
    return failed


def ask(copy: Path, mutant: Mutant, last: str) -> str:
    """Run the test that caught a mutant last time, then all of its tests if that one passes or no longer exists."""
    path = copy / PACKAGE / mutant.file
    before = path.read_text(encoding="utf-8")
    try:
        path.write_text(mutant.mutated(copy), encoding="utf-8")
        try:
            noticed = run_tests(copy, [last]) if last else ""
        except ListError:
            noticed = ""  # the test was renamed
        return noticed or run_tests(copy, mutant.tests)
    finally:
        path.write_text(before, encoding="utf-8")


def try_all(mutants: Sequence[Mutant], root: Path, jobs: int, kept: Path | None) -> dict[Mutant, str]:
    """Return which test caught each mutant; mutants tried by an earlier run on the same tree are not tried again."""
    lines = kept.read_text(encoding="utf-8").splitlines() if kept and kept.is_file() else []
    known = dict(json.loads(line) for line in lines)
    found: dict[Mutant, str] = {mutant: known[mutant.key] for mutant in mutants if mutant.key in known}
    lines = (root / PAGE).read_text(encoding="utf-8").splitlines() if (root / PAGE).is_file() else []
    last = dict(row.groups() for line in lines if (row := re.fullmatch(r"\| \d+ (\| .+ \|) `([^`]+)` \|", line)))
    os.environ["OMP_NUM_THREADS"] = "1"
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    with tempfile.TemporaryDirectory(prefix="mutants-") as place, ThreadPoolExecutor(jobs) as pool:
        free: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            free.put(copy := Path(place) / f"copy{number}")
            for name in COPIED:
                if (root / name).is_dir():
                    shutil.copytree(root / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", ".cache"))
                elif (root / name).is_file():
                    shutil.copy2(root / name, copy / name)

        def outcome(mutant: Mutant) -> tuple[Mutant, str]:
            copy = free.get()
            try:
                return mutant, ask(copy, mutant, last.get(mutant.cells(), ""))
            finally:
                free.put(copy)

        for done in as_completed([pool.submit(outcome, mutant) for mutant in mutants if mutant not in found]):
            mutant, noticed = done.result()
            found[mutant] = noticed
            print(mutant.line(noticed), flush=True)
            if kept:
                with kept.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([mutant.key, noticed]) + "\n")
        tests = sorted({noticed.partition("[")[0] for noticed in found.values() if noticed.startswith("tests")})
        if tests and (failed := run_tests(free.get(), tests)):
            raise ListError(f"{failed} fails without any mutation")
    return {mutant: found[mutant] for mutant in mutants}


def table(outcomes: dict[Mutant, str]) -> str:
    """Return the page of results."""
    equivalent = sum(bool(mutant.equivalent) for mutant in outcomes)
    survived = sum(mutant.wrong(noticed) == "SURVIVED" for mutant, noticed in outcomes.items())
    rooms = sorted({mutant.room for mutant in outcomes})
    lines = [
        "# Mutants",
        "",
        "Made by `make mutants`: one line of the package is changed at a time, and the tests of its room are run until the",
        "first that fails. The list is `tools/mutants.toml`.",
        "",
        f"{len(outcomes)} mutations in {len(rooms)} rooms ({', '.join(rooms)}): {sum(map(bool, outcomes.values()))} noticed,"
        f" {equivalent} equivalent, {survived} survived.",
        "",
        "| | room | file | mutation | breaks | noticed by |",
        "|--:|---|---|---|---|---|",
    ]
    for mutant, noticed in outcomes.items():
        told = f"`{cell(noticed)}`" if noticed else f"equivalent: {cell(mutant.equivalent)}"
        told = "**SURVIVED**" if mutant.wrong(noticed) == "SURVIVED" else told
        lines.append(f"| {mutant.number} {mutant.cells()} {told} |")
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    return text.strip().replace("|", "\\|").replace("`", "'")


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Parse the command line, try the mutants, and print those with a wrong outcome."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--only", action="append", default=[], help="a subpackage, a file or a number; repeatable")
    parser.add_argument("--jobs", type=int, default=1, help="number of mutants to try in parallel")
    parser.add_argument("--check", action="store_true", help="only check that the list matches the code")
    asked = parser.parse_args(arguments)
    tree = hashlib.sha256()  # of all code and tests, since results of another tree are not valid
    for path in sorted(path for folder in ("src", "tests") for path in (root / folder).rglob("*.py")):
        tree.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    kept = root / ".cache" / f"mutants-{tree.hexdigest()[:16]}.jsonl"
    kept.parent.mkdir(exist_ok=True)
    try:
        every = read_list(root / "tools" / "mutants.toml")
        check_list(every, root)
        if asked.check:
            print(f"{len(every)} mutations fit the code")
            return 0
        wanted = [one for one in every if not asked.only or {one.room, one.file, str(one.number)} & set(asked.only)]
        outcomes = try_all(wanted, root, asked.jobs, None if asked.only else kept)
    except ListError as error:
        print(error, file=sys.stderr)
        return 2
    if not asked.only:
        (root / PAGE).write_text(table(outcomes), encoding="utf-8")
    wrong = [mutant.line(noticed) for mutant, noticed in outcomes.items() if mutant.wrong(noticed)]
    print("\n".join([f"{len(outcomes)} mutations, {len(wrong)} wrong", *wrong]))
    return 1 if wrong or not outcomes else 0


if __name__ == "__main__":
    sys.exit(main())

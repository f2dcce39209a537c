"""Change one line at a time and check that a test fails: python tools/mutants.py [--only ROOM or NUMBER] [--jobs N]

`tools/mutants.toml` lists the lines, what each becomes and the tests that should notice. Each mutation is made in a copy
of the tree; a run of the whole list writes `results/mutants.md`. It fails where a mutation survives that is not marked
equivalent with its reason, where one that is marked is noticed after all, and where the list does not fit the code.
An interrupted run continues as long as no file has changed. The test that noticed a mutation in the last whole run is run first.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path("src/idness")
COPIED = ("src", "tests", "tools", "docs", "examples", "results", "pyproject.toml", "Makefile", "README.md")
PAGE = Path("results/mutants.md")
SECONDS = 900
"""A mutation may well make a loop endless; its tests take a small part of this."""


class ListError(Exception):
    """The list of mutations is wrong, or the tests fail without any mutation."""


@dataclass(frozen=True)
class Mutant:
    """One line, what becomes of it, and the tests that should notice."""

    number: int
    file: str
    find: str
    put: str
    breaks: str
    tests: tuple[str, ...]
    equivalent: str

    @property
    def room(self) -> str:
        """The room of the file; a module in the root of the package is a room of its own."""
        return Path(self.file).with_suffix("").parts[0]

    def mutated(self, root: Path) -> str:
        """Return the file's text with the mutation."""
        path = root / PACKAGE / self.file
        if not path.is_file():
            raise ListError(f"{self}: there is no such file")
        text = path.read_text(encoding="utf-8")
        if text.count(self.find) != 1 or "\n" in self.find + self.put:
            raise ListError(
                f"{self}: must be on one line, once in the file, got {text.count(self.find)} times: {self.find}"
            )
        return text.replace(self.find, self.put)

    def cells(self) -> str:
        """Write the cells that tell it from all others in the page of results."""
        change = f"`{_cell(self.find)}` → `{_cell(self.put)}`" if self.put else f"without `{_cell(self.find)}`"
        return f"| {self.room} | {self.file} | {change} | {_cell(self.breaks)} |"

    def __str__(self) -> str:
        return f"{self.number} {self.file} ({self.breaks})"


@dataclass(frozen=True)
class Outcome:
    """The first test that noticed a mutant; empty if none did."""

    mutant: Mutant
    noticed: str

    @property
    def wrong(self) -> str:
        """Why the run fails; empty if the outcome is as expected."""
        if not self.noticed and not self.mutant.equivalent:
            return "SURVIVED"
        return "NOT EQUIVALENT" if self.noticed and self.mutant.equivalent else ""

    def line(self) -> str:
        """Write one line for the terminal."""
        told = self.noticed or self.mutant.equivalent or "no test noticed"
        return f"{self.wrong or 'ok':14} {self.mutant}: {told}"


def read_list(path: Path) -> list[Mutant]:
    """Read the list; numbers count from 1 in its order."""
    found: list[Mutant] = []
    for file, entry in tomllib.loads(path.read_text(encoding="utf-8")).items():
        for each in entry["mutants"]:
            tests = each.get("tests", entry["tests"])
            found.append(
                Mutant(
                    number=len(found) + 1,
                    file=file,
                    find=each["find"],
                    put=each["put"],
                    breaks=each["breaks"],
                    tests=tuple([tests] if isinstance(tests, str) else tests),
                    equivalent=each.get("equivalent", ""),
                )
            )
    return found


def check_list(mutants: Sequence[Mutant], root: Path = ROOT) -> None:
    """Refuse a list that does not fit the code, with all that is wrong."""
    wrong = []
    for mutant in mutants:
        try:
            compile(mutant.mutated(root), mutant.file, "exec")
        except (ListError, SyntaxError) as error:
            wrong.append(str(error) if isinstance(error, ListError) else f"{mutant}: is not Python any more")
        wrong += [f"{mutant}: no {test}" for test in mutant.tests if not _exists(root, test)]
    if wrong:
        raise ListError("the list of mutations does not fit the code:\n" + "\n".join(wrong))


def _exists(root: Path, test: str) -> bool:
    file, _, name = test.partition("::")
    path = root / file
    return path.exists() and (not name or f"def {name.partition('[')[0]}(" in path.read_text(encoding="utf-8"))


class Copies:
    """Copies of the tree, one for each job."""

    def __init__(self, root: Path, count: int, place: Path) -> None:
        self.free: SimpleQueue[Path] = SimpleQueue()
        for number in range(count):
            copy = place / f"copy{number}"
            copy.mkdir()
            for name in COPIED:
                if (root / name).is_dir():
                    shutil.copytree(root / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", ".cache"))
                elif (root / name).is_file():
                    shutil.copy2(root / name, copy / name)
            self.free.put(copy)

    @contextmanager
    def broken(self, mutant: Mutant | None) -> Iterator[Path]:
        """Yield a copy with a mutation, and restore it afterwards."""
        copy = self.free.get()
        path = copy / PACKAGE / (mutant.file if mutant else "__init__.py")
        before = path.read_text(encoding="utf-8")
        try:
            if mutant:
                path.write_text(mutant.mutated(copy), encoding="utf-8")
            yield copy
        finally:
            path.write_text(before, encoding="utf-8")
            self.free.put(copy)


def run_tests(copy: Path, tests: Sequence[str]) -> str:
    """Run tests in a copy until the first failure and return its name; empty if all pass."""
    # No bytecode is written: two mutations of one second and one length would be taken for each other.
    own = {"PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "CI": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-rfE", "--tb=no", "-p", "no:xdist", *tests]
    try:
        done = subprocess.run(
            command, cwd=copy, env=os.environ | own, capture_output=True, text=True, check=False, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"no end within {SECONDS} s"
    if done.returncode == 0:
        return ""
    named = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", done.stdout, re.MULTILINE)
    if named is None or done.returncode not in (1, 2):
        raise ListError(f"pytest {' '.join(tests)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr}")
    return named[1]


def ask(copy: Path, mutant: Mutant, last: str) -> str:
    """Run the test that noticed a mutant last time, then all of its tests if that one passes or is gone."""
    if last:
        try:
            if noticed := run_tests(copy, [last]):
                return noticed
        except ListError:
            pass  # the test has another name now
    return run_tests(copy, mutant.tests)


def try_all(mutants: Sequence[Mutant], root: Path, jobs: int, kept: Path | None) -> list[Outcome]:
    """Try every mutant, except those that a former run on the same tree has tried."""
    known = _known(kept) if kept else {}
    last = _last(root / PAGE)
    found = [Outcome(mutant, known[_key(mutant)]) for mutant in mutants if _key(mutant) in known]
    left = [mutant for mutant in mutants if _key(mutant) not in known]
    with tempfile.TemporaryDirectory(prefix="mutants-") as place, ThreadPoolExecutor(jobs) as pool:
        copies = Copies(root, jobs, Path(place))

        def outcome(mutant: Mutant) -> Outcome:
            with copies.broken(mutant) as copy:
                return Outcome(mutant, ask(copy, mutant, last.get(mutant.cells(), "")))

        _check_imports(copies)
        for done in as_completed([pool.submit(outcome, mutant) for mutant in left]):
            found.append(done.result())
            print(found[-1].line(), flush=True)
            if kept:
                with kept.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([_key(found[-1].mutant), found[-1].noticed]) + "\n")
        _check_unbroken(copies, found)
    return sorted(found, key=lambda one: one.mutant.number)


def _check_imports(copies: Copies) -> None:
    """Refuse to start if the tests would import another copy of the package."""
    with copies.broken(None) as copy:
        code = "import idness, pathlib; print(pathlib.Path(idness.__file__).resolve())"
        where = subprocess.check_output(
            [sys.executable, "-c", code], cwd=copy, env=os.environ | {"PYTHONPATH": str(copy / "src")}, text=True
        )
        if not Path(where.strip()).is_relative_to(copy.resolve()):
            raise ListError(f"the tests would not test the copy, but {where.strip()}")


def _check_unbroken(copies: Copies, outcomes: Sequence[Outcome]) -> None:
    """Refuse tests that fail without any mutation."""
    noticed = sorted({one.noticed.partition("[")[0] for one in outcomes if one.noticed.startswith("tests")})
    with copies.broken(None) as copy:
        if noticed and (failed := run_tests(copy, noticed)):
            raise ListError(f"{failed} fails without any mutation")


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the page of results."""
    noticed = sum(bool(one.noticed) for one in outcomes)
    equivalent = sum(bool(one.mutant.equivalent) for one in outcomes)
    survived = sum(one.wrong == "SURVIVED" for one in outcomes)
    rooms = sorted({one.mutant.room for one in outcomes})
    lines = [
        "# Mutants",
        "",
        "Made by `make mutants`: one line of the package is changed at a time, and the tests of its room are run until the",
        "first that fails. The list is `tools/mutants.toml`.",
        "",
        f"{len(outcomes)} mutations in {len(rooms)} rooms ({', '.join(rooms)}): {noticed} noticed, {equivalent} equivalent,"
        f" {survived} survived.",
        "",
        "| | room | file | mutation | breaks | noticed by |",
        "|--:|---|---|---|---|---|",
    ]
    for one in outcomes:
        told = f"`{_cell(one.noticed)}`" if one.noticed else f"**{one.wrong}**" if one.wrong else ""
        told = told or f"equivalent: {_cell(one.mutant.equivalent)}"
        lines.append(f"| {one.mutant.number} {one.mutant.cells()} {told} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.strip().replace("|", "\\|").replace("`", "'")


def _key(mutant: Mutant) -> str:
    return hashlib.sha256(repr((mutant.file, mutant.find, mutant.put, mutant.tests)).encode()).hexdigest()[:16]


def _known(kept: Path) -> dict[str, str]:
    lines = kept.read_text(encoding="utf-8").splitlines() if kept.is_file() else []
    return dict(json.loads(line) for line in lines)


def _last(page: Path) -> dict[str, str]:
    """Read from the page of the last whole run which test noticed which mutant."""
    lines = page.read_text(encoding="utf-8").splitlines() if page.is_file() else []
    rows = (re.fullmatch(r"\| \d+ (\| .+ \|) `([^`]+)` \|", line) for line in lines)
    return {row[1]: row[2] for row in rows if row}


def _tree(root: Path) -> str:
    """Hash all code and tests: results of another tree are not valid for this one."""
    paths = sorted(path for room in ("src", "tests") for path in (root / room).rglob("*.py"))
    total = hashlib.sha256()
    for path in paths:
        total.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return total.hexdigest()[:16]


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Parse the command line, try the mutants, and print those that survived."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--only", action="append", default=[], help="a room, a file or a number; may be given again")
    parser.add_argument("--jobs", type=int, default=1, help="how many to try at once")
    parser.add_argument("--check", action="store_true", help="only see whether the list fits the code")
    asked = parser.parse_args(arguments)
    try:
        every = read_list(root / "tools" / "mutants.toml")
        check_list(every, root)
        wanted = [one for one in every if not asked.only or {one.room, one.file, str(one.number)} & set(asked.only)]
        if not wanted:
            raise ListError(f"--only must be a room, a file or a number of the list, got {', '.join(asked.only)}")
        if asked.check:
            print(f"{len(every)} mutations fit the code")
            return 0
        kept = root / ".cache" / f"mutants-{_tree(root)}.jsonl"
        kept.parent.mkdir(exist_ok=True)
        outcomes = try_all(wanted, root, asked.jobs, None if asked.only else kept)
    except ListError as error:
        print(error, file=sys.stderr)
        return 2
    if not asked.only:
        (root / PAGE).write_text(table(outcomes), encoding="utf-8")
    wrong = [one for one in outcomes if one.wrong]
    print("\n".join([f"{len(outcomes)} mutations, {len(wrong)} wrong", *(one.line() for one in wrong)]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

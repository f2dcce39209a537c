"""Finds and runs the code blocks of documents.

All blocks of a document run in order in one folder that holds what its readers have: a network, images, results. Python
blocks share their names; shell blocks run under `bash -e`; TOML must parse. A comment before a block may say

    <!-- file: NAME -->       that the block is also the content of a file
    <!-- runs as: COMMAND --> what runs in its place, the same in a smaller setting
    <!-- goes into: PATH -->  that the block is part of the tree and does not run here; `test_recipe.py` puts it there
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cli.running import idness

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(
    r"(?:^[ \t]*<!-- (?P<key>file|runs as|goes into): (?P<value>.*?) -->\n)?"
    r"^(?P<indent>[ \t]*)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```\s*$",
    re.MULTILINE | re.DOTALL,
)
SHELLS = ("bash", "sh", "console", "shell")
# What sets up the machine, or never ends, runs in a form that does neither; the target or package must exist all the same.
INSTEAD = [
    (
        re.compile(r"^make (\w[\w-]*)(.*)$", re.MULTILINE),
        rf"make --no-print-directory -C '{ROOT}' --dry-run \1 > /dev/null",
    ),
    (
        re.compile(r"^pip install '?\.(\[[\w,]+\])?'?(.*)$", re.MULTILINE),
        rf"python extras_exist.py '{ROOT}/pyproject.toml' '\1'",
    ),
    (re.compile(r"^(idness serve .*)$", re.MULTILINE), r"python serve_briefly.py '\1'"),
]


@dataclass(frozen=True)
class Block:
    """Is one fenced block of a document."""

    language: str
    text: str
    line: int
    file: str | None = None
    runs_as: str | None = None
    goes_into: str | None = None


def blocks_of(document: str) -> list[Block]:
    """Find the blocks of a Markdown text."""
    found = []
    for match in FENCE.finditer(document):
        indent = len(match["indent"])
        text = "".join(line[indent:] if line.strip() else "\n" for line in match["text"].splitlines(keepends=True))
        line = document.count("\n", 0, match.start("language")) + 1
        given = {match["key"].replace(" ", "_"): match["value"]} if match["key"] else {}
        found.append(Block(match["language"], text, line, **given))
    return found


def run_document(name: str, document: str, folder: Path) -> int:
    """Run all blocks of a document in a folder, and count them."""
    names: dict[str, Any] = {"__name__": "__main__"}
    found = blocks_of(document)
    for block in found:
        if block.goes_into:
            continue
        if block.file:
            (folder / block.file).write_text(block.text, encoding="utf-8")
        if block.language == "python":
            exec(compile("\n" * (block.line - 1) + block.text, name, "exec", dont_inherit=True), names)
        elif block.language in SHELLS:
            run_shell(name, block, folder)
        elif block.language == "toml":
            tomllib.loads(block.text)
        else:
            assert block.language == "text", f"{name}:{block.line}: no way to run a block of {block.language!r}"
    return len(found)


def run_here(name: str, block: Block, folder: Path, script: str) -> bool:
    """Run a script that is nothing but plain `idness` commands in this process, which has loaded torch already."""
    lines = [shlex.split(line, comments=True) for line in re.split(r"[;\n]", script)]
    commands = [line for line in lines if line]
    plain = not re.search(r"[|<>&$*`\\]", script)
    if not plain or not all(line[0] == "idness" for line in commands):
        return False
    for line in commands:
        done = idness(*line[1:], cwd=folder, NO_COLOR="1", XDG_CACHE_HOME=str(folder / ".cache"))
        assert done.returncode == 0, f"{name}:{block.line}: {line}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return True


def run_shell(name: str, block: Block, folder: Path) -> None:
    script = block.runs_as or block.text
    for pattern, other in INSTEAD:
        script = pattern.sub(other, script)
    if run_here(name, block, folder, script):
        return
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {
        "PATH": path,
        "OMP_NUM_THREADS": "1",
        "NO_COLOR": "1",
        "XDG_CACHE_HOME": str(folder / ".cache"),
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, f"{name}:{block.line}: {script}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"

"""The one way in which tests run the command line: through `main()` in this process, or in one of its own."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from idness.cli import main
from idness.core.errors import IdnessWarning

PROCESS = [sys.executable, "-m", "idness"]
"""The start of a command, for tests that need a process of its own: to kill, to pipe from, to see what it imports."""


def idness(
    *words: object, cwd: Path | None = None, stdin: str | Iterator[str] = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `idness` with these words in this process, and give its exit code and what it wrote.

    A traceback is an error of the test: no mistake of a user may cause one.
    """
    given = [str(word) for word in words]
    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch, chdir(cwd or Path.cwd()), redirect_stdout(out), redirect_stderr(err),
        warnings.catch_warnings(), pytest.raises(SystemExit) as ended,
    ):  # fmt: skip
        warnings.simplefilter("default", IdnessWarning)  # shown, as a user sees them, not raised
        patch.setattr(sys, "argv", ["idness", *given])
        patch.setattr(sys, "stdin", io.StringIO(stdin) if isinstance(stdin, str) else stdin)
        for name in set(os.environ) & {"COLUMNS", "FORCE_COLOR"}:
            patch.delenv(name)
        for name, value in environment.items():
            patch.setenv(name, value)
        main()
    code = ended.value.code
    assert isinstance(code, int)
    return subprocess.CompletedProcess(given, code, out.getvalue(), err.getvalue())

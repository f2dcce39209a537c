"""Runs commands in processes of their own that can be killed, quickly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ZYGOTE = Path(__file__).with_name("zygote.py")


class Runner:
    """Runs `idness` in children of one process that has imported everything."""

    def __init__(self, process: subprocess.Popen[str], output: Path) -> None:
        self.process, self.output = process, output
        self.seconds = 0.0

    def __call__(
        self, *words: object, cwd: Path, kill_after: float | None = None, largest: int | None = None, **environment: str
    ) -> int:
        """Run a command, perhaps kill it after so many seconds, and give its exit code; below 0 is a signal."""
        assert self.process.stdin is not None
        job = {
            "words": [str(word) for word in words], "cwd": str(cwd), "output": str(self.output), "largest": largest,
            "environment": environment,
        }  # fmt: skip
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        child, started = int(self._line()), time.monotonic()
        if kill_after is not None:
            time.sleep(kill_after)
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        code = int(self._line())
        self.seconds = time.monotonic() - started
        assert code != 99, self.said
        return code

    @property
    def said(self) -> str:
        """What the last command wrote."""
        return self.output.read_text(errors="replace")

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


@contextmanager
def runner(folder: Path) -> Iterator[Runner]:
    process = subprocess.Popen(
        [sys.executable, str(ZYGOTE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    try:
        yield Runner(process, folder / "said.txt")
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60)
        process.stdout.close()

"""A process that has imported everything, and forks one child for each command that it is told to run: starts cost nothing."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys

import idness.benchmark.runner
import idness.cli
import idness.guard.calibrate
import idness.guard.onnx
import idness.report
import idness.training


def run(job: dict) -> None:
    os.chdir(job["cwd"])
    output = os.open(job["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(job["environment"])
    if job["largest"] is not None:
        # A file that grows beyond this fails as on a full disk.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (job["largest"], job["largest"]))
    sys.argv = ["idness", *job["words"]]
    code = 1
    try:
        idness.cli.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException as error:
        import traceback

        traceback.print_exception(error)
        code = 99
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def say(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


say("ready")
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        run(json.loads(line))
    say(child)
    say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

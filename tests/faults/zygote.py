"""A process that has imported everything, and forks one child for each command that it is told to run.

So starts cost nothing, and a random moment of a command is one of its work, not of its imports.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path

import lightning_fabric  # noqa: F401
import matplotlib.backends.backend_svg  # noqa: F401
import onnx  # noqa: F401
import onnxruntime  # noqa: F401
import onnxscript  # noqa: F401
import torch
import torchvision.transforms.v2  # noqa: F401

import idness.benchmark.extraction
import idness.benchmark.runner
import idness.cli
import idness.cli.bench
import idness.cli.calibrate
import idness.cli.extract
import idness.cli.train
import idness.guard.calibrate
import idness.guard.onnx
import idness.methods
import idness.report.figures
import idness.report.page
import idness.report.tables
import idness.training


def warm() -> None:
    """Let the exporter load what it needs for any network."""
    with idness.guard.onnx._quiet():
        torch.onnx.export(torch.nn.Linear(2, 2), (torch.rand(2, 2),), dynamo=True, external_data=False)


def run(job: dict, output: int) -> None:
    os.chdir(job["cwd"])
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
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


warm()
say("ready")
for line in sys.stdin:
    job = json.loads(line)
    # A pipe, since a file could not grow either where no file may grow.
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        run(job, writing)
    os.close(writing)
    say(child)
    with os.fdopen(reading, "rb") as said:
        Path(job["output"]).write_bytes(said.read())
    say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

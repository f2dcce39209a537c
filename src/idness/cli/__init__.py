"""The command line. A subcommand parses, calls one library function and prints what it returns.

Nothing here may import torch before a subcommand runs: `idness --help` answers at once.
"""

from __future__ import annotations

import atexit
import errno
import gc
import importlib
import os
import re
import sys
import textwrap
import threading
import warnings
from functools import cache
from typing import Annotated, Any, TextIO

import typer
import typer.core

from idness.core.errors import IdnessError, IdnessWarning
from idness.core.processor import sort_fast
from idness.core.wording import masked

COMMANDS = {
    "bench": "bench:bench",
    "extract": "extract:extract",
    "compare": "compare:compare",
    "calibrate": "calibrate:calibrate",
    "score": "score:score",
    "export": "export:export",
    "serve": "serve:serve",
    "train": "train:train",
    "data": "data:data",
    "reproduce": "reproduce:reproduce",
    "analyze": "analyze:analyze",
    "doctor": "doctor:doctor",
    "list": "list:list_methods",
}
"""Each subcommand's name, module and function."""
GROUPS = {
    "Measure": ("bench", "extract", "compare", "doctor", "list"),
    "Decide": ("calibrate", "score", "export", "serve"),
    "Train": ("train",),
    "Study the paper": ("data", "reproduce", "analyze"),
}
"""How `--help` groups the subcommands."""

STOPPED = 130
"""The exit code of what Ctrl-C has stopped."""
KEPT = {
    "bench": "what the network made of the images so far is kept, and the same command goes on from there",
    "extract": "shards that are done are kept in out=, and the same command with resume=True goes on from there",
    "calibrate": "no guard was written; run the same command again",
    "score": "the rows above are whole; give the images that are left, or with out= the same command with resume=True goes on",
    "train": "the last checkpoint is kept in out=, and the same command goes on from there",
    "data": "what is loaded is kept, and the same command goes on from there",
    "reproduce": "tables that were done are kept, and the same command goes on from there",
}
"""What is kept of a subcommand that is stopped, and how to go on; the others keep nothing."""

ARGUMENT = re.compile(r"\b([a-z_]+)=(?:'([^']*)'|True)?(?=[\s,;.)]|$)")
"""How the library's messages name an argument: `weights=`, `weights='none'`, `partial=True`."""


class Grouped(typer.core.TyperGroup):
    """Lists the subcommands by what they are for, each with the whole of its summary."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the groups."""
        width = max(map(len, COMMANDS)) + 2
        for title, names in GROUPS.items():
            with formatter.section(title):
                for name in names:
                    summary = (self.commands[name].help or "").partition("\n\n")[0]
                    lines = textwrap.wrap(
                        " ".join(summary.split()), formatter.width - width - 2, break_on_hyphens=False
                    )
                    formatter.write(f"  {name:{width}}{lines[0]}\n")
                    formatter.write("".join(f"  {'':{width}}{line}\n" for line in lines[1:]))


app = typer.Typer(
    name="idness",
    cls=Grouped,
    help="Know when an image classifier is looking at something it was never trained on.",
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from idness import __version__

        print(f"idness {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Know when an image classifier is looking at something it was never trained on."""
    if context.invoked_subcommand is None:
        print(context.get_help())


for _name, _home in COMMANDS.items():
    _module, _, _function = _home.partition(":")
    app.command(_name)(getattr(importlib.import_module(f"idness.cli.{_module}"), _function))


def main() -> None:
    """Run the command line: one line and exit code 2 for whatever the user can mend."""
    warnings.showwarning = _show_warning
    if sys.stdout is None:  # started with >&-: the next file that is opened would take its place
        _stop("standard output is closed; redirect it to a file or to /dev/null", 2)
    try:
        # Under its own name, however it was started: completion in the shell goes by it.
        result = _command()(prog_name="idness", standalone_mode=False)
        if result == STOPPED:  # what newer versions of typer make of Ctrl-C
            raise KeyboardInterrupt
        sys.stdout.flush()
        sys.exit(result if isinstance(result, int) else 0)
    except (typer.Abort, KeyboardInterrupt):
        _stop(with_flags(f"stopped; {KEPT.get(_named() or '', 'nothing was written')}"), STOPPED)
    except IdnessError as error:
        _stop(with_flags(str(error)), 2)
    except OSError as error:
        if error.filename is not None or error.errno not in (errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EFBIG):
            raise
        # What is still buffered must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:  # the reader (head, less) has gone
            sys.exit(0)
        _stop(f"cannot write to standard output: {error.strerror}; free space or redirect it", 2)
    except Exception as error:
        # Usage errors are click's, whose classes live in different packages from version to version of typer.
        if not hasattr(error, "format_message"):
            raise
        _stop(error.format_message(), 2)


def run() -> None:
    """Run the command line as a process of its own, which ends at once: taking torch apart piece by piece takes long."""
    sort_fast()
    # Read when torch is imported: threads that spin while they wait for each other slow down a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("KMP_BLOCKTIME", "0")
    gc.set_threshold(50_000)  # imports make many objects and no garbage: looking for it is wasted time
    try:
        main()
    except SystemExit as done:
        code = done.code
        others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
        if not isinstance(code, int) or not all(thread.daemon for thread in others):
            raise
        try:
            atexit._run_exitfuncs()
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
        except (OSError, ValueError, AttributeError):  # no reader, a full disk, a stream that was closed or never there
            raise done from None  # which Python tells in its own way
        os._exit(code)


@cache
def _command() -> Any:
    return typer.main.get_command(app)


def with_flags(message: str) -> str:
    """Name the arguments of which a message of the library speaks as the subcommand at hand takes them."""
    named = _named()
    spoken = {}
    for parameter in _command().commands[named].params if named else ():
        spoken[parameter.name] = parameter.opts[0] if parameter.opts[0].startswith("-") else parameter.name.upper()
    if "token_file" in spoken:
        spoken["key"] = spoken["token_file"]
    if "mean" in spoken:
        spoken["preprocessing"] = "--size, --mean and --std"
    elif "benchmark" in spoken:
        spoken["preprocessing"] = "[preprocessing] in the benchmark's file"
        spoken["class_names"] = "classes in the benchmark's file"
    return ARGUMENT.sub(lambda m: " ".join(filter(None, (spoken.get(m[1]), m[2]))) if m[1] in spoken else m[0], message)


def _named() -> str | None:
    """Find the subcommand at hand."""
    return next((word for word in sys.argv[1:] if word in COMMANDS), None)


def _stop(message: str, code: int) -> None:
    print(f"idness: {masked(' '.join(message.split()))}", file=sys.stderr)
    sys.exit(code)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> Any:
    if issubclass(category, IdnessWarning):
        print(f"idness: warning: {masked(with_flags(str(message)))}", file=sys.stderr)
    else:
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno, line))

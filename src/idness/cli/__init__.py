"""The command line. Each subcommand parses its options, calls one library function and prints the result.

Nothing here may import torch before a subcommand runs, so that `idness --help` is instant.
"""

from __future__ import annotations

import errno
import gc
import io
import os
import re
import sys
import warnings
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any

import typer
import typer.core

from idness.cli import guard, measure, paper, train
from idness.core.errors import IdnessError, IdnessWarning
from idness.core.text import masked

GROUPS: dict[str, dict[str, Callable[..., None]]] = {
    "Measure": {
        "bench": measure.bench,
        "extract": measure.extract,
        "compare": measure.compare,
        "doctor": measure.doctor,
        "list": measure.list_methods,
    },
    "Decide": {"calibrate": guard.calibrate, "score": guard.score, "export": guard.export, "serve": guard.serve},
    "Train": {"train": train.train},
    "Study the paper": {"data": paper.data, "reproduce": paper.reproduce, "analyze": paper.analyze},
}
"""The subcommands by name, in the groups of `--help`."""
COMMANDS = {name: function for group in GROUPS.values() for name, function in group.items()}
STOPPED = 130
"""Exit code after Ctrl-C."""
KEPT = {
    "bench": "activations computed so far are cached; run the same command again to continue",
    "extract": "finished shards are in out=; run the same command with resume=True to continue",
    "calibrate": "no guard was written; run the same command again",
    "score": "the rows above are complete; pass the remaining images, or continue out= with resume=True",
    "train": "the last checkpoint is in out=; run the same command again to continue",
    "data": "downloaded parts are kept; run the same command again to continue",
    "reproduce": "finished tables are kept; run the same command again to continue",
}
"""What is left when a subcommand is interrupted; subcommands not listed leave nothing."""
ALIASES = {"key": "token_file", "arch": "model", "batch": "batch_size"}
"""Library arguments whose command-line parameter has another name."""
SHOW = warnings.showwarning
ARGUMENT = re.compile(r"\b([a-z_]+)=(?:'([^']*)'|True)?(?=[\s,;.)]|$)")
"""An argument in a library message: `weights=`, `weights='none'`, `partial=True`."""


class Grouped(typer.core.TyperGroup):
    """A group whose help lists subcommands by purpose, with complete summaries."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the subcommands by group."""
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, (self.commands[name].help or "").partition("\n\n")[0]) for name in names])


app = typer.Typer(
    name="idness",
    cls=Grouped,
    help="Detect images unlike those a classifier was trained on.",
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
    """Detect images unlike those a classifier was trained on."""
    if context.invoked_subcommand is None:
        print(context.get_help())


for _name, _function in COMMANDS.items():
    app.command(_name)(_function)


@cache
def command() -> Any:
    """Return the command line as a click group."""
    return typer.main.get_command(app)


def main() -> None:
    """Run the command line; errors that the user can fix are printed as one line, with exit code 2."""
    warnings.showwarning = _show_warning
    sys.stderr = sys.stderr or io.StringIO()  # `2>&-` closes it
    if sys.stdout is None:
        _stop("standard output is closed; redirect it to a file or to /dev/null", 2)
    try:
        # Shell completion depends on this name.
        result = command()(prog_name="idness", standalone_mode=False)
        if result == STOPPED:  # newer versions of typer return it after Ctrl-C
            raise KeyboardInterrupt
        sys.stdout.flush()
        sys.exit(result if isinstance(result, int) else 0)
    except (typer.Abort, KeyboardInterrupt):
        _stop(with_flags(f"stopped; {KEPT.get(_named() or '', 'nothing was written')}"), STOPPED)
    except IdnessError as error:
        _stop(with_flags(str(error)), 2)
    except OSError as error:
        if error.filename is not None or error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        # Buffered output must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:  # the reader, such as head, has exited
            sys.exit(0)
        _stop(f"cannot write to standard output: {error.strerror}; free space or redirect it", 2)
    except Exception as error:
        # Usage errors come from click; which package defines their classes depends on the version of typer.
        if not hasattr(error, "format_message"):
            raise
        _stop(error.format_message(), 2)


def run() -> None:
    """Run the command line as the main program of a process."""
    # Read when torch is imported: threads that spin while waiting slow down a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("KMP_BLOCKTIME", "0")
    gc.set_threshold(10_000)  # imports create a million long-lived objects
    main()


def with_flags(message: str) -> str:
    """Return a library message with argument names replaced by the options of the current subcommand."""
    named = _named()
    spoken = {}
    for parameter in command().commands[named].params if named else ():
        spoken[parameter.name] = parameter.opts[0] if parameter.opts[0].startswith("-") else parameter.name.upper()
    spoken |= {old: spoken[new] for old, new in ALIASES.items() if new in spoken}
    if "mean" in spoken:
        spoken["preprocessing"] = "--size, --mean and --std"
    elif "benchmark" in spoken:
        spoken["preprocessing"] = "[preprocessing] in the benchmark's file"
        spoken["class_names"] = "classes in the benchmark's file"
    return ARGUMENT.sub(lambda m: " ".join(filter(None, (spoken.get(m[1]), m[2]))) if m[1] in spoken else m[0], message)


def _named() -> str | None:
    return next((word for word in sys.argv[1:] if word in COMMANDS), None)


def _stop(message: str, code: int) -> None:
    print(f"idness: {masked(' '.join(message.split()))}", file=sys.stderr)
    sys.exit(code)


def _show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    if issubclass(category, IdnessWarning):
        print(f"idness: warning: {masked(with_flags(str(message)))}", file=sys.stderr)
    else:
        SHOW(message, category, *where, **more)

"""`idness reproduce`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from idness.cli.options import Device, Force, Threads

if TYPE_CHECKING:
    from rich.console import Console

    from idness.paper.reproduce import Reproduction

OUT = Path("reproduced")


def reproduce(
    tables: Annotated[list[str] | None, typer.Argument(help="Tables, as in cifar10 or imagenet; all if none.")] = None,
    data: Annotated[
        list[Path] | None, typer.Option(help="Folder that holds the sets and weights; may be given more than once.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the reports and the comparison.")] = OUT,
    weights: Annotated[Path | None, typer.Option(help="The network's weights, where they have another name.")] = None,
    precision: Annotated[str, typer.Option(help="fp32, bf16, or auto, which measures both.")] = "fp32",
    batch_size: Annotated[
        int | None, typer.Option(help="Images per forward pass; chosen by their size if not given.")
    ] = None,
    threads: Threads = None,
    device: Device = "auto",
    cache: Annotated[Path | None, typer.Option(help="Folder that keeps activations between runs.")] = None,
    force: Force = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress and no remarks.")] = False,
) -> None:
    """Run the paper's tables on what data there is, and print ours, theirs and the difference."""
    from idness.benchmark.settings import Settings
    from idness.cli.terminal import command_line, stderr, stdout
    from idness.core.progress import shown
    from idness.paper.reproduce import PAGE, SUMMARY, reproduction_folder
    from idness.paper.reproduce import reproduce as run

    folder = reproduction_folder(out, force=force)
    folder.check()
    settings = Settings(
        weights=weights,
        precision=precision,
        batch_size=batch_size,
        device=device,
        cache=cache,
        threads=threads,
        command=command_line(),
    )
    with shown(quiet=quiet) as listener:
        done = run(tables or [], data or [], out=folder, settings=settings, listener=listener)
    if as_json:
        sys.stdout.write(done.to_json())
    else:
        _show(stdout(), done)
    if not quiet:
        folders = [f"{outcome.folder}/" for outcome in done.outcomes if outcome.folder]
        names = ", ".join(dict.fromkeys([SUMMARY, PAGE, *folders]))
        stderr().print(f"wrote {names} to {out}", markup=False, soft_wrap=True)


def _show(console: Console, done: Reproduction) -> None:
    """Print what was measured, then what was not, what is missing for it, and the paper's own slips."""
    from idness.paper.comparison import missing, remarks, slips, tables
    from idness.paper.reproduce import PAGE, not_reproduced
    from idness.report.tables import rich_table

    def say(line: str, style: str = "dim") -> None:
        console.print(line, style=style, markup=False, soft_wrap=True)

    for outcome in (outcome for outcome in done.outcomes if outcome.measured):
        table = outcome.table
        say(f"{table.name}: {table.title} ({table.where}) · {outcome.status}", "bold")
        for made in tables(outcome):
            console.print(rich_table(made))
        for line in remarks(outcome):
            say(line)
        console.print()
    if others := [outcome for outcome in done.outcomes if not outcome.measured]:
        say("Not reproduced", "bold")
        for line in (line for outcome in others for line in not_reproduced(outcome)):
            say(line)
        console.print()
    if gaps := missing(done.outcomes, commands=False):
        console.print(rich_table(gaps))
        say(f"what brings each: {PAGE}\n")
    say("Where the paper contradicts itself", "bold")
    for line in slips(done.outcomes):
        say(f"- {line}")

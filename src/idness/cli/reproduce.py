"""`idness reproduce`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from idness.paper.comparison import Outcome

OUT = Path("reproduced")


def reproduce(
    tables: Annotated[list[str] | None, typer.Argument(help="Tables, as in cifar10 or imagenet; all if none.")] = None,
    data: Annotated[
        list[Path] | None, typer.Option(help="Folder that holds the sets and weights; may be given more than once.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the reports and the comparison.")] = OUT,
    weights: Annotated[Path | None, typer.Option(help="The network's weights, where they have another name.")] = None,
    precision: Annotated[str, typer.Option(help="fp32, bf16, or auto, which measures both.")] = "fp32",
    batch_size: Annotated[int, typer.Option(help="Images per forward pass.")] = 128,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    cache: Annotated[Path | None, typer.Option(help="Folder that keeps activations between runs.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress and no remarks.")] = False,
) -> None:
    """Run the paper's tables on what data there is, and print ours, theirs and the difference."""
    from idness.benchmark.provenance import without_folder
    from idness.benchmark.settings import Settings
    from idness.cli.terminal import stderr, stdout
    from idness.core.progress import shown
    from idness.paper.reproduce import PAGE, SUMMARY
    from idness.paper.reproduce import reproduce as run

    command = shlex.join(["idness", *(without_folder(word) for word in sys.argv[1:])])
    settings = Settings(
        weights=weights, precision=precision, batch_size=batch_size, device=device, cache=cache, command=command
    )
    with shown(quiet=quiet) as listener:
        done = run(tables or [], data or [], out=out, settings=settings, listener=listener)
    if as_json:
        sys.stdout.write(done.to_json())
    else:
        console = stdout()
        for outcome in done.outcomes:
            _show(console, outcome)
    if not quiet:
        folders = [f"{outcome.folder}/" for outcome in done.outcomes if outcome.folder]
        names = ", ".join(dict.fromkeys([SUMMARY, PAGE, *folders]))
        stderr().print(f"wrote {names} to {out}", markup=False, soft_wrap=True)


def _show(console: Any, outcome: Outcome) -> None:
    from idness.paper.comparison import remarks, tables
    from idness.report.table import rich_table

    table = outcome.table
    console.print(f"{table.name}: {table.title} ({table.where}) · {outcome.status}", style="bold", markup=False)
    for made in tables(outcome):
        console.print(rich_table(made))
    for line in (*remarks(outcome), *(f"missing: {gap}" for gap in outcome.missing)):
        console.print(line, style="dim", markup=False, soft_wrap=True)
    console.print()

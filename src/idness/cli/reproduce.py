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
    from rich.table import Table

    from idness.paper.comparison import mark_of, numbers, pairs

    table = outcome.table
    console.print(f"{table.name}: {table.title} ({table.where}) · {outcome.status}", style="bold", markup=False)
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("method", "set"):
        shown.add_column(name)
    kind = "ID positive" if table.fpr == "fpr_at_id_recall" else "OOD positive"
    for name in (f"FPR ({kind})\nours", "\ntheirs", "\ndiff", "AUROC\nours", "\ntheirs", "\ndiff"):
        shown.add_column(name, justify="right", no_wrap=True)
    last = ""
    for row, column, fpr, auroc in pairs(outcome):
        shown.add_row(row if row != last else "", column + mark_of(fpr or auroc), *numbers(fpr), *numbers(auroc))
        last = row
    if shown.row_count:
        console.print(shown)
    _show_rest(console, outcome)


def _show_rest(console: Any, outcome: Outcome) -> None:
    from idness.paper.comparison import numbers

    for metric, title in (("id_accuracy", "ID accuracy"), ("mean_p", "mean p-value")):
        for cell in (cell for cell in outcome.measured if cell.metric == metric):
            ours, theirs, difference = numbers(cell)
            name = cell.row if metric == "id_accuracy" else cell.column
            console.print(f"{title}, {name}: ours {ours}, theirs {theirs}, diff {difference}", markup=False)
    if outcome.images:
        counts = ", ".join(f"{name} {here:,} of {there:,}" for name, (here, there) in outcome.images.items())
        console.print(f"images: {counts}", style="dim", markup=False)
    for note in outcome.notes:
        console.print(note, style="dim", markup=False)
    for gap in outcome.missing:
        console.print(f"missing: {gap}", style="dim", markup=False, soft_wrap=True)
    console.print()

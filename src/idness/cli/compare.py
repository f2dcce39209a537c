"""`idness compare`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from idness.cli.options import Force


def compare(
    results: Annotated[
        list[str],
        typer.Argument(help="Folders that idness bench wrote, or name=folder,folder for the seeds of one run."),
    ],
    out: Annotated[Path | None, typer.Option(help="Folder for compare.md and compare.html.")] = None,
    fpr: Annotated[str, typer.Option(help="Positive side of the FPR in the tables: id or ood.")] = "id",
    sets: Annotated[bool, typer.Option("--sets", help="Show every set, not only the groups.")] = False,
    force: Force = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no remarks.")] = False,
) -> None:
    """Compare results of the same images: differences from the first, with paired intervals."""
    from idness.benchmark.compare import compare as compared
    from idness.benchmark.compare import gather
    from idness.cli.terminal import stderr, stdout
    from idness.core.files import OutputFolder
    from idness.report import comparison
    from idness.report.tables import fpr_name, rich_table

    metrics = ("auroc", fpr_name(fpr))
    folder = None if out is None else OutputFolder(out, force=force)
    if folder is not None:
        folder.check()
    found = compared(gather(results))
    if as_json:
        print(json.dumps(found.to_dict(), indent=1, allow_nan=False))
    else:
        console = stdout()
        for table in comparison.tables(found, metrics, ("group", "set") if sets else ("group",)):
            console.print(table.title, style="bold", markup=False)
            console.print(rich_table(table))
            console.print()
        console.print("\n".join(comparison.legend(found)), style="dim", markup=False)
    if folder is not None:
        written = comparison.write(found, folder)
        if not quiet:
            stderr().print(f"wrote {', '.join(path.name for path in written)} to {out}", markup=False, soft_wrap=True)

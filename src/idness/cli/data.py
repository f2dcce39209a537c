"""`idness data`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

ROOT = Path("data")


def data(
    benchmarks: Annotated[
        list[str] | None, typer.Argument(help="Benchmarks, as in cifar10 or imagenet; all if none.")
    ] = None,
    root: Annotated[Path, typer.Option(help="Folder that holds the sets, or is to hold them.")] = ROOT,
    check: Annotated[bool, typer.Option("--check", help="Also read files whose hash is known.")] = False,
    download: Annotated[
        bool, typer.Option("--download", help="Fetch what is missing and may be fetched; a stopped one goes on.")
    ] = False,
    only: Annotated[str, typer.Option("--set", help="Fetch only these sets, as in isun,textures.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress and no remarks.")] = False,
) -> None:
    """List the sets of the shipped benchmarks: size, licence, source, what is here and whole; fetch what may be fetched."""
    from idness.cli.terminal import stderr, stdout
    from idness.core.files import check_writable
    from idness.core.progress import shown
    from idness.paper import holdings as library
    from idness.report.tables import rich_table

    if download:
        check_writable(root)
        with shown(quiet=quiet) as listener:
            names = [name.strip() for name in only.split(",") if name.strip()]
            fetched = library.download(root, benchmarks or [], names, listener=listener)
        if not quiet:
            stderr().print(f"fetched {', '.join(fetched) or 'nothing'} into {root}", markup=False, soft_wrap=True)
    found = library.holdings([root], benchmarks or [], check=check)
    if as_json:
        sys.stdout.write(json.dumps(library.to_json(found), indent=1) + "\n")
    else:
        stdout().print(rich_table(library.as_table(found)))
    if check and any(item.found is not None and item.state != library.WHOLE for item in found):
        raise typer.Exit(1)

"""`idness list`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer


def list_methods(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List every method: what it does, its options with defaults, what it needs and what it costs."""
    from rich.markup import escape
    from rich.table import Table

    from idness.cli.terminal import stdout
    from idness.detectors.catalogue import catalogue

    entries = catalogue()
    if as_json:
        print(json.dumps([asdict(entry) for entry in entries], indent=2))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("method", no_wrap=True, style="bold")
    table.add_column("what it does, and its options")
    table.add_column("training\nimages", no_wrap=True)
    table.add_column("negative\nfeatures", no_wrap=True)
    table.add_column("passes", no_wrap=True)
    for entry in entries:
        about = f"{escape(entry.summary)}\n[dim]{escape(entry.signature) or 'no options'}[/dim]"
        signed = "unsuited" if entry.assumes_nonnegative else "fine"
        table.add_row(entry.name, about, entry.learns_from, signed, entry.passes)
    console = stdout()
    console.print(table)
    console.print(
        "\n[dim]Set options as in[/dim] scale(percentile=95)[dim]; a search tries them on validation data. Passes: how often an"
        " image goes forward + backward through the network; one forward pass serves all that need no more, and a comparison runs"
        " the others only where they are named.[/dim]"
    )

"""`idness score`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from idness.guard.guard import Guard

COLUMNS = ("image", "class", "score", "p_value", "is_ood", "reason")


def score(
    guard: Annotated[Path, typer.Argument(help="The guard's folder.")],
    images: Annotated[
        list[str], typer.Argument(help="Files, folders, patterns in quotes, or - for a list on standard input.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 if any image is out-of-distribution or unreadable.")
    ] = False,
    recall: Annotated[
        float | None, typer.Option(help="Decide at another recall than the guard was calibrated for.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The network, where the guard cannot find it by itself.")] = None,
    weights: Annotated[str | None, typer.Option(help="The network's weights, with --model.")] = None,
    batch: Annotated[int, typer.Option(help="Images per batch.", min=1)] = 64,
) -> None:
    """Judge images: class, ID-ness, p-value and verdict of each."""
    from idness.guard.judge import find_images, judge_images

    # Looked for before the network is loaded: a wrong path is told at once.
    found = [] if images == ["-"] else list(find_images(images))
    loaded = load(guard, model, weights)
    if recall is not None:
        loaded.set_recall(recall)
    records = judge_images(loaded, found or _listed(), batch=batch)
    show = _print_json if as_json else _print_csv if as_csv else _print_table
    worst = show(records)
    if strict and worst:
        raise typer.Exit(1)


def load(folder: Path, model: str | None, weights: str | None) -> Guard:
    """Load a guard, with the network that the user names, if any."""
    from idness.guard.file import load_guard
    from idness.networks import trust

    loaded = load_guard(folder, model, weights)
    if model is not None:
        trust.remember(model)
    return loaded


def _listed() -> Iterator[Path]:
    import sys

    return (Path(line.rstrip("\n")) for line in sys.stdin if line.strip())


def _print_json(records: Iterable[dict[str, Any]]) -> bool:
    import json

    listed = list(records)
    print(json.dumps(listed, indent=2))
    return any(_bad(record) for record in listed)


def _print_csv(records: Iterable[dict[str, Any]]) -> bool:
    import csv
    import sys

    writer = csv.DictWriter(sys.stdout, [*COLUMNS, "error"], extrasaction="ignore", restval="", lineterminator="\n")
    writer.writeheader()
    worst = False
    for record in records:
        writer.writerow(record)
        worst |= _bad(record)
    return worst


def _print_table(records: Iterable[dict[str, Any]]) -> bool:
    from rich.markup import escape
    from rich.table import Table

    from idness.cli.terminal import stdout

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("verdict", no_wrap=True)
    table.add_column("class", overflow="fold")
    table.add_column("ID-ness", justify="right", no_wrap=True)
    table.add_column("p-value", justify="right", no_wrap=True)
    table.add_column("image", overflow="fold")
    listed = list(records)
    for record in listed:
        image = escape(record["image"])
        if "error" in record:
            table.add_row("[yellow]unread[/yellow]", "", "", "", f"{image}\n[dim]{escape(record['error'])}[/dim]")
            continue
        verdict = "[bold red]OUT[/bold red]" if record["is_ood"] else "[green]in[/green]"
        note = f"\n[dim]{escape(record['reason'])}[/dim]" if record["reason"] else ""
        table.add_row(
            verdict, escape(record["class"]), f"{record['score']:.4g}", f"{record['p_value']:.4f}", image + note
        )
    console = stdout()
    console.print(table)
    flagged, unread = sum(bool(record.get("is_ood")) for record in listed), sum("error" in record for record in listed)
    tail = f", {unread} unread" if unread else ""
    console.print(f"\n{flagged} of {len(listed)} images out-of-distribution{tail}")
    return any(_bad(record) for record in listed)


def _bad(record: dict[str, Any]) -> bool:
    return bool(record.get("is_ood", True))

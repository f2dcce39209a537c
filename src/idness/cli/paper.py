"""Commands about the paper: `data`, `reproduce` and `analyze`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from idness.cli import options as o
from idness.cli.terminal import open_console, print_note, print_tables


def data(
    benchmarks: Annotated[list[str] | None, typer.Argument(help="Benchmarks, such as cifar10; default: all.")] = None,
    root: Annotated[list[Path] | None, typer.Option(help="Folder with the sets (default: data); repeatable.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 if a set is incomplete.")] = False,
    download: Annotated[bool, typer.Option("--download", help="Download sets that need no account.")] = False,
    only: Annotated[str, typer.Option("--sets", help="Download only these sets, such as isun,textures.")] = "",
    as_json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """List the sets of the included benchmarks with size, licence, source and availability; download missing ones."""
    from idness.core.files import check_writable
    from idness.core.progress import show_progress
    from idness.paper import datasets

    roots = root or [Path("data")]
    if download:
        check_writable(roots[0])
        with show_progress(quiet=quiet) as progress:
            names = [name.strip() for name in only.split(",") if name.strip()]
            fetched = datasets.download(roots, benchmarks or [], names, progress)
        print_note(f"downloaded {', '.join(fetched) or 'nothing'} to {roots[0]}", quiet=quiet)
    found = datasets.list_sets(roots, benchmarks or [])
    if as_json:
        sys.stdout.write(json.dumps([item.to_dict() for item in found], indent=1) + "\n")
    else:
        print_tables(open_console(), [datasets.sets_table(found)])
    if check and any(item.available and not item.complete for item in found):
        raise typer.Exit(1)


def reproduce(
    tables: Annotated[list[str] | None, typer.Argument(help="Tables, such as cifar10; default: all.")] = None,
    data: Annotated[list[Path] | None, typer.Option(help="Folder with sets and weights; repeatable.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for reports and comparison.")] = Path("reproduced"),
    weights: Annotated[Path | None, typer.Option(help="The network's weights, if their file has another name.")] = None,
    precision: o.Precision = "fp32",
    engine: o.Engine = "auto",
    batch_size: o.BatchSize = None,
    threads: o.Threads = None,
    device: o.Device = "auto",
    cache: o.Cache = None,
    force: o.Force = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Reproduce the paper's tables on the available data, and print the results next to the paper's."""
    from idness.core.files import OutputFolder
    from idness.core.progress import show_progress
    from idness.paper.reproduce import PAGE, SUMMARY
    from idness.paper.reproduce import reproduce as run

    folder = OutputFolder(out, force=force)
    folder.check()
    settings = o.settings_of(locals(), data=None)
    with show_progress(quiet=quiet) as progress:
        done = run(tables or [], data or [], out=folder, settings=settings, progress=progress)
    if as_json:
        sys.stdout.write(done.to_json())
    else:
        print_tables(open_console(), done.tables(commands=False))
    folders = [f"{outcome.folder}/" for outcome in done.outcomes if outcome.folder]
    names = ", ".join(dict.fromkeys([SUMMARY, PAGE, *folders]))
    print_note(f"wrote {names} to {out}; {PAGE} lists how to get missing data", quiet=quiet)


def analyze(
    benchmark: o.Benchmark = "",
    model: o.OptionalModel = "",
    weights: o.Weights = None,
    layer: o.Layer = "",
    data: o.Data = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Output folder.")] = Path("idness-analysis"),
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of images per set, evenly spaced.")] = 1000,
    device: o.Device = "auto",
    threads: o.Threads = None,
    force: o.Force = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Run the paper's analyses on a network: Gaussianity, moments, C(p), percentiles, ratios, trade-off, ISH."""
    from idness.core.files import OutputFolder
    from idness.core.progress import show_progress
    from idness.data import embedded
    from idness.paper.studies.analyze import analyze as run

    folder = OutputFolder(out, force=force)
    folder.check()
    settings = o.settings_of(locals())
    with show_progress(quiet=quiet) as progress:
        found = run(model or None, benchmark or embedded.NAME, settings=settings, limit=limit, progress=progress)
        written = found.save(folder)
    if as_json:
        sys.stdout.write(found.to_json())
    else:
        console = open_console()
        console.print(found.title, style="bold", markup=False)
        for study in found.studies:
            console.print(f"\n[bold]{study.name}[/bold]")
            console.print(study.line, markup=False)
        console.print()
    files = ", ".join(path.name for path in written if path.suffix != ".png")
    print_note(f"wrote {files} to {out} and the figures as .png", quiet=quiet)

"""`idness analyze`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from idness.cli.options import Device, Force, Layer, Model

OUT = Path("idness-analysis")


def analyze(
    model: Model = "",
    benchmark: Annotated[
        str, typer.Argument(help="A benchmark's name or TOML file; the embedded one if not given.")
    ] = "",
    weights: Annotated[Path | None, typer.Option(help="The network's weights: safetensors or a checkpoint.")] = None,
    layer: Layer = "",
    data: Annotated[Path | None, typer.Option(help="Folder at which the benchmark's relative paths begin.")] = None,
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = OUT,
    limit: Annotated[int, typer.Option(min=1, help="The most images used of each set, evenly picked.")] = 1000,
    device: Device = "auto",
    force: Force = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress and no remarks.")] = False,
) -> None:
    """Run the paper's analyses on a network: Gaussianity, moments, C(p), percentiles, ratios, trade-off, ISH."""
    from idness.benchmark.settings import Settings
    from idness.cli.terminal import command_line, stderr, stdout
    from idness.core.progress import shown
    from idness.data import embedded
    from idness.paper.studies.analyze import analysis_folder
    from idness.paper.studies.analyze import analyze as run

    folder = analysis_folder(out, force=force)
    folder.check()
    settings = Settings(weights=weights, layer=layer or None, data=data, device=device, command=command_line())
    with shown(quiet=quiet) as listener:
        found = run(model or None, benchmark or embedded.NAME, settings=settings, limit=limit, listener=listener)
        written = found.save(folder)
    if as_json:
        sys.stdout.write(found.to_json())
    else:
        console = stdout()
        console.print(found.title, style="bold", markup=False)
        for study in found.studies:
            console.print(f"\n[bold]{study.name}[/bold]")
            console.print(study.line, markup=False)
        console.print()
    if not quiet:
        names = ", ".join(path.name for path in written if path.suffix != ".png")
        stderr().print(f"wrote {names} to {out}; the figures as .png too", markup=False, soft_wrap=True)

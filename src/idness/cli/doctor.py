"""`idness doctor`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from idness.cli.options import ClassNames, Layer, Mean, Model, MultiLabel, Size, Std, model_options


def doctor(
    model: Model,
    data: Annotated[
        str,
        typer.Option(help="In-distribution images: a folder or other set; without it only the structure is judged."),
    ] = "",
    ood: Annotated[str, typer.Option(help="OOD images; they make the verdict measured.")] = "",
    weights: Annotated[str, typer.Option(help="The network's weights, or none for a network as it is built.")] = "",
    size: Size = None,
    mean: Mean = None,
    std: Std = None,
    layer: Layer = "",
    class_names: ClassNames = None,
    multi_label: MultiLabel = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of images of each set, evenly picked.")] = 4000,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress and no remarks.")] = False,
) -> None:
    """Recommend a method for a network, with the reasons, and tell whether SCALE suits it."""
    from rich.text import Text

    from idness.cli.terminal import stdout
    from idness.core.progress import shown
    from idness.selection.recommend import diagnose

    with shown(quiet=quiet) as listener:
        options = model_options(
            model, weights, layer=layer, multi_label=multi_label, class_names=class_names, pixels=(size, mean, std)
        )
        found = diagnose(options, data or None, ood or None, limit=limit, listener=listener)
    if as_json:
        print(json.dumps(found.to_dict(), indent=1))
        return
    console = stdout()
    console.print(found.why, style="bold", markup=False)
    if found.risk:
        console.print(found.risk, markup=False)
    console.print()
    signs = {True: ("+", "green"), False: ("-", "red"), None: ("·", "dim")}
    for finding in found.findings:
        console.print(Text.assemble(signs[finding.good], " ", (finding.name, "bold"), f": {finding.text}"))

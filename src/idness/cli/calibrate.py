"""`idness calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from idness.cli.options import (
    ClassNames,
    Engine,
    Force,
    Layer,
    Mean,
    Model,
    MultiLabel,
    Size,
    Std,
    Threads,
    model_options,
)


def calibrate(
    model: Model,
    data: Annotated[
        str, typer.Option("--data", help="In-distribution images the network was not trained on: a folder.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the guard.")] = Path("guard"),
    weights: Annotated[
        str | None, typer.Option(help="The network's weights: a .safetensors file or a checkpoint.")
    ] = None,
    method: Annotated[str, typer.Option(help="A method such as 'scale(percentile=85)', or auto.")] = "auto",
    ood: Annotated[
        str | None, typer.Option(help="Images that should be flagged, to choose a method by; no test set.")
    ] = None,
    train: Annotated[
        str | None,
        typer.Option(help="Images for methods that learn, or a file of their activations; without it, half of --data."),
    ] = None,
    recall: Annotated[
        list[float] | None, typer.Option(help="Share of in-distribution images to keep; may be repeated.")
    ] = None,
    false_alarm: Annotated[
        list[float] | None, typer.Option(help="Share that may be flagged, in place of --recall.")
    ] = None,
    per_class: Annotated[
        bool, typer.Option("--per-class", help="Give each predicted class its own threshold.")
    ] = False,
    size: Size = None,
    mean: Mean = None,
    std: Std = None,
    layer: Layer = "",
    class_names: ClassNames = None,
    multi_label: MultiLabel = None,
    any_accuracy: Annotated[
        bool, typer.Option("--any-accuracy", help="Continue even if accuracy is at chance level.")
    ] = False,
    engine: Engine = "auto",
    threads: Threads = None,
    bundle: Annotated[bool, typer.Option(help="Keep a copy of the weights in the guard's folder.")] = True,
    thumbnails: Annotated[
        bool, typer.Option(help="Keep thumbnails of up to 240 calibration images for the page.")
    ] = True,
    force: Force = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the guard's description as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but cautions and errors.")] = False,
) -> None:
    """Make a guard for your network from a folder of your images."""
    import json

    from idness.cli.terminal import stderr
    from idness.core.progress import STARTING, shown
    from idness.core.scripts import approve
    from idness.data import embedded

    with shown(quiet=quiet) as listener:
        listener.phase(STARTING, None)
        from idness.guard.calibrate import prepare_guard
        from idness.guard.file import describe, guard_folder
        from idness.guard.suspicions import CAUTION

        folder = guard_folder(out, force=force)
        folder.check()
        options = model_options(
            model, weights, layer=layer, multi_label=multi_label, class_names=class_names, pixels=(size, mean, std),
            engine=engine, threads=threads,
        )  # fmt: skip
        made = prepare_guard(
            options, data, method=method, train=train, ood=ood, recall=recall, false_alarm=false_alarm,
            per_class=per_class, gallery=thumbnails, any_accuracy=any_accuracy, listener=listener,
        )  # fmt: skip
    approve(model)
    made.guard.save(folder, bundle=bundle and not embedded.owns(model))
    for note in made.notes:
        if not quiet or note.startswith(CAUTION):  # a promise that may not hold is never hidden
            stderr().print(f"· {note}", markup=False)
    if as_json:
        print(json.dumps(describe(made.guard), indent=2))
    elif not quiet:
        limit = made.guard.threshold()
        limits = (
            f"{float(limit[0]):.4g}"
            if len(limit) == 1
            else f"{float(limit.min()):.4g} to {float(limit.max()):.4g}, by class"
        )
        print(f"method     {made.guard.detector.label()}")
        print(f"threshold  {limits} (ID-ness below it is out-of-distribution)")
        print(f"promise    {made.guard.promise()}")
        print(f"wrote      {out}")

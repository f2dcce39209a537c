"""`idness calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from idness.cli.bench import ENGINE_HELP


def calibrate(
    model: Annotated[
        str,
        typer.Argument(help="torchvision:NAME, timm:NAME, file.py:function, a folder of idness train, or cifar6:base."),
    ],
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
        typer.Option(
            help="Images for methods that learn, or the file idness fit made of them; without it, half of --data."
        ),
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
    size: Annotated[int | None, typer.Option(help="Side of the square input, where the network does not say.")] = None,
    mean: Annotated[str | None, typer.Option(help="Mean of each channel in [0, 1], as in 0.49,0.48,0.45.")] = None,
    std: Annotated[str | None, typer.Option(help="Standard deviation of each channel.")] = None,
    layer: Annotated[str | None, typer.Option(help="Name of the final linear layer, where it is not found.")] = None,
    class_names: Annotated[
        str | None,
        typer.Option("--classes", help="Names in the order of the network's outputs: a,b,c, a text file, or imagenet."),
    ] = None,
    multi_label: Annotated[
        bool | None,
        typer.Option("--multi-label/--single-label", help="Whether an image may get several labels, or none."),
    ] = None,
    any_accuracy: Annotated[
        bool, typer.Option("--any-accuracy", help="Go on where labelled images are classified rightly by chance only.")
    ] = False,
    engine: Annotated[str, typer.Option(help=ENGINE_HELP)] = "auto",
    bundle: Annotated[bool, typer.Option(help="Keep a copy of the weights in the guard's folder.")] = True,
    thumbnails: Annotated[
        bool, typer.Option(help="Keep thumbnails of up to 240 calibration images for the page.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the guard's description as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but cautions and errors.")] = False,
) -> None:
    """Make a guard for your network from a folder of your images."""
    import json

    from idness.cli.preprocessing import preprocessing
    from idness.cli.terminal import stderr
    from idness.core.files import check_writable
    from idness.core.progress import STARTING, shown
    from idness.data import embedded
    from idness.data.classes import read_classes

    check_writable(out)
    with shown(quiet=quiet) as listener:
        listener.phase(STARTING, None)
        from idness.guard.calibrate import prepare_guard
        from idness.guard.file import describe
        from idness.guard.suspicions import CAUTION
        from idness.networks import trust

        made = prepare_guard(
            model, data, weights=weights, method=method, train=train, ood=ood, recall=recall, false_alarm=false_alarm,
            per_class=per_class, preprocessing=preprocessing(size, mean, std), layer=layer, multi_label=multi_label,
            class_names=read_classes(class_names) if class_names else (), gallery=thumbnails, engine=engine, any_accuracy=any_accuracy,
            listener=listener,
        )  # fmt: skip
    trust.remember(model)
    made.guard.save(out, bundle=bundle and not embedded.owns(model))
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

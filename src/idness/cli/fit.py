"""`idness fit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from idness.cli.bench import ENGINE_HELP


def fit(
    model: Annotated[
        str,
        typer.Argument(
            help="torchvision:NAME, timm:NAME, file.py:function, a folder of idness train, or cifar6:base; or a file with the head, where"
            " the data are activations."
        ),
    ],
    data: Annotated[
        list[str],
        typer.Argument(
            help="Training images: folders or other sets, activations, or files that idness fit wrote of others."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")] = Path("train.safetensors"),
    weights: Annotated[
        str | None, typer.Option(help="The network's weights: a .safetensors file or a checkpoint.")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(help="Gather what these learn, as in rmds,knn,react,dice; what all learn if not given."),
    ] = None,
    keep: Annotated[
        int,
        typer.Option(
            help="Images kept as a sample, as many of each class, for methods that compare with images.", min=1
        ),
    ] = 5000,
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
    cache: Annotated[
        Path | None, typer.Option(help="Folder for what the network makes of images; the usual one if not given.")
    ] = None,
    engine: Annotated[str, typer.Option(help=ENGINE_HELP)] = "auto",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Make a small file of a training set, which guards and benchmarks take in its place."""
    from idness.cli.preprocessing import preprocessing
    from idness.core.files import check_writable
    from idness.core.method_text import split_methods
    from idness.core.progress import STARTING, shown
    from idness.data.classes import read_classes

    check_writable(out.parent)
    with shown(quiet=quiet) as listener:
        listener.phase(STARTING, None)
        from idness.networks import trust
        from idness.selection.fitting import fit_file

        found = fit_file(
            model, data, out, weights=weights, methods=split_methods(methods) if methods else (), keep=keep,
            preprocessing=preprocessing(size, mean, std), layer=layer, multi_label=multi_label,
            class_names=read_classes(class_names) if class_names else (), cache=cache, engine=engine, listener=listener,
        )  # fmt: skip
    trust.remember(model)
    if not quiet:
        skipped = f", {found.skipped:,} skipped" if found.skipped else ""
        print(f"images  {found.images:,}{skipped}")
        print(f"wrote   {out} ({out.stat().st_size / 1e6:.1f} MB)")
        print(f"use it  idness calibrate {model} --data IMAGES --train {out}")

"""`idness fit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from idness.cli.options import ClassNames, Engine, Layer, Mean, MultiLabel, Size, Std


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
    size: Size = None,
    mean: Mean = None,
    std: Std = None,
    layer: Layer = "",
    class_names: ClassNames = None,
    multi_label: MultiLabel = None,
    cache: Annotated[
        Path | None, typer.Option(help="Folder for what the network makes of images; the usual one if not given.")
    ] = None,
    engine: Engine = "auto",
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
            preprocessing=preprocessing(size, mean, std), layer=layer or None, multi_label=multi_label,
            class_names=read_classes(class_names) if class_names else (), cache=cache, engine=engine, listener=listener,
        )  # fmt: skip
    trust.remember(model)
    if not quiet:
        skipped = f", {found.skipped:,} skipped" if found.skipped else ""
        print(f"images  {found.images:,}{skipped}")
        print(f"wrote   {out} ({out.stat().st_size / 1e6:.1f} MB)")
        print(f"use it  idness calibrate {model} --data IMAGES --train {out}")

"""Options that several commands share, each written once."""

from __future__ import annotations

from typing import Annotated

import typer

ENGINE_HELP = "What runs the network: eager, compiled, onnxruntime, openvino, or auto, which measures."

Model = Annotated[
    str,
    typer.Argument(help="torchvision:NAME, timm:NAME, file.py:function, a folder of idness train, or cifar6:base."),
]
Size = Annotated[int | None, typer.Option(help="Side of the square input, where the network does not say.")]
Mean = Annotated[str | None, typer.Option(help="Mean of each channel in [0, 1], as in 0.49,0.48,0.45.")]
Std = Annotated[str | None, typer.Option(help="Standard deviation of each channel.")]
Layer = Annotated[str, typer.Option(help="Name of the final linear layer; found by itself if not given.")]
ClassNames = Annotated[
    str | None,
    typer.Option("--classes", help="Names in the order of the network's outputs: a,b,c, a text file, or imagenet."),
]
MultiLabel = Annotated[
    bool | None,
    typer.Option("--multi-label/--single-label", help="Whether an image may get several labels, or none."),
]
Engine = Annotated[str, typer.Option(help=ENGINE_HELP)]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto.")]
Force = Annotated[
    bool, typer.Option("--force", help="Write into a folder with other files, and overwrite those of the same name.")
]
Partial = Annotated[bool, typer.Option("--partial", help="Leave out sets that are not there.")]

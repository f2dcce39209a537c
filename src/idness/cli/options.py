"""Options that several commands share, and how those of a network become `ModelOptions`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from idness.data import Preprocessing
    from idness.networks.open import ModelOptions

ENGINE_HELP = "What runs the network: eager, compiled, onnxruntime, openvino, or auto."

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
Threads = Annotated[
    int | None, typer.Option(min=1, help="Threads of the network and of decoding together; all cores if not given.")
]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto.")]
Force = Annotated[
    bool, typer.Option("--force", help="Write into a folder with other files, and overwrite those of the same name.")
]
Partial = Annotated[bool, typer.Option("--partial", help="Leave out sets that are not there.")]


def model_options(
    model: str,
    weights: str | Path | None,
    *,
    layer: str,
    class_names: str | None,
    pixels: tuple[int | None, str | None, str | None],
    **options: Any,
) -> ModelOptions:
    """Return the options of a network as the command line gives them; `pixels` is size, mean and std."""
    from idness.data.open import read_classes
    from idness.networks.open import ModelOptions

    return ModelOptions(
        model,
        weights or None,
        layer=layer or None,
        class_names=read_classes(class_names) if class_names else (),
        preprocessing=preprocessing(*pixels),
        **options,
    )


def preprocessing(size: int | None, mean: str | None, std: str | None) -> Preprocessing | None:
    """Return the preprocessing of `--size`, `--mean` and `--std`; `None` if none is given."""
    from idness.core.errors import OptionError
    from idness.data import Preprocessing

    if size is None and mean is None and std is None:
        return None
    if size is None:
        raise OptionError("--mean and --std need --size, the side of the network's input in pixels")
    values: dict[str, object] = {"resize": (size, size)}
    for name, text in (("mean", mean), ("std", std)):
        if text is not None:
            try:
                values[name] = tuple(float(part) for part in text.split(","))
            except ValueError as error:
                raise OptionError(
                    f"--{name} must be numbers with commas between, one per channel, got {text!r}"
                ) from error
    return Preprocessing.from_dict(values)

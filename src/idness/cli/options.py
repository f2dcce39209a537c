"""Options shared by several commands, and their conversion to `ModelOptions` and `Settings`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from idness.cli.terminal import command_line
from idness.core.errors import OptionError

if TYPE_CHECKING:
    from idness.benchmark.protocol import Settings
    from idness.cluster import Pool
    from idness.networks.open import ModelOptions

MODEL_HELP = "torchvision:NAME, timm:NAME, hf:NAME, file.py:function, a run of idness train, or photos:mobilenet_v2."
ENGINE_HELP = "Engine that runs the network: eager, onnxruntime, openvino, or auto."

Model = Annotated[str, typer.Argument(help=MODEL_HELP)]
OptionalModel = Annotated[str, typer.Option("--model", help=MODEL_HELP)]
GuardModel = Annotated[str | None, typer.Option("--model", help="The network, if the guard's cannot be found.")]
GuardWeights = Annotated[str | None, typer.Option("--weights", help="The network's weights, with --model.")]
Weights = Annotated[str | None, typer.Option(help="A safetensors file or checkpoint, or none for random weights.")]
Size = Annotated[int | None, typer.Option(help="Side of the square input, if the network does not define it.")]
Mean = Annotated[str | None, typer.Option(help="Mean of each channel in [0, 1], as in 0.49,0.48,0.45.")]
Std = Annotated[str | None, typer.Option(help="Standard deviation of each channel.")]
Layer = Annotated[str, typer.Option(help="Name of the final linear layer; found automatically by default.")]
ClassNames = Annotated[str | None, typer.Option("--classes", help="Class names in order: a,b,c, a file, or imagenet.")]
MultiLabel = Annotated[
    bool | None, typer.Option("--multi-label/--single-label", help="Whether an image may have several labels or none.")
]
Benchmark = Annotated[str, typer.Argument(help="Name or TOML file of a benchmark; default: the embedded one.")]
Data = Annotated[Path | None, typer.Option(help="Base folder for relative paths in the benchmark file.")]
Partial = Annotated[bool, typer.Option("--partial", help="Skip sets that are not available.")]
AnyAccuracy = Annotated[bool, typer.Option("--any-accuracy", help="Continue even if accuracy is at chance level.")]
Precision = Annotated[str, typer.Option(help="fp32, bf16, or auto (bf16 on a GPU).")]
Engine = Annotated[str, typer.Option(help=ENGINE_HELP)]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads for network and decoding; default: all cores.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto.")]
BatchSize = Annotated[int | None, typer.Option(min=1, help="Images per batch; the default depends on their size.")]
Workers = Annotated[int | None, typer.Option(help="Threads that decode images.")]
Cache = Annotated[Path | None, typer.Option(help="Folder for caching activations between runs.")]
Fpr = Annotated[str, typer.Option(help="Positive class of the FPR in the tables: id or ood.")]
Force = Annotated[bool, typer.Option("--force", help="Allow a folder with other files; overwrite same-named ones.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue in an existing folder; finished parts are kept.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print neither progress nor notes.")]

RayEngine = Annotated[
    str, typer.Option(help=f"{ENGINE_HELP[:-1]}; ray uses several processes, or several machines with --address.")
]
Address = Annotated[str | None, typer.Option(help="Address of a Ray cluster; default: start Ray locally.")]
Actors = Annotated[int | None, typer.Option(min=1, help="Number of Ray processes; default: one per core or GPU.")]
Gpus = Annotated[float, typer.Option("--gpus-per-actor", min=0, help="GPUs per process, with --engine ray.")]


def model_options(given: Mapping[str, Any]) -> ModelOptions:
    """Return the network options among a command's parameters."""
    from idness.data import Preprocessing
    from idness.data.sets import read_classes
    from idness.networks.open import ModelOptions

    size, class_names = given["size"], given["class_names"]
    pixels: dict[str, object] = {} if size is None else {"resize": (size, size)}
    for name in ("mean", "std"):
        if (text := given[name]) is None:
            continue
        if size is None:
            raise OptionError("--mean and --std need --size, the side of the network's input in pixels")
        try:
            pixels[name] = tuple(map(float, text.split(",")))
        except ValueError as error:
            raise OptionError(f"--{name}: must be numbers separated by commas, got {text!r}") from error
    options = {field.name: given[field.name] for field in fields(ModelOptions) if field.name in given}
    options["class_names"] = read_classes(class_names) if class_names else ()
    options["preprocessing"] = Preprocessing.from_dict(pixels) if pixels else None
    return ModelOptions(**options | {"weights": given["weights"] or None, "layer": given["layer"] or None})


def settings_of(given: Mapping[str, Any], **other: Any) -> Settings:
    """Return the benchmark settings among a command's parameters, together with `other` ones."""
    from idness.benchmark.protocol import Settings

    options = {field.name: given[field.name] for field in fields(Settings) if field.name in given}
    return Settings(**options | {"layer": given.get("layer") or None, "command": command_line()} | other)


def engine_and_pool(engine: str, address: str | None, actors: int | None, gpus: float) -> tuple[str, Pool | None]:
    """Return the engine of the network, and the pool of processes if the engine is `ray` or `ray:ENGINE`."""
    kind, _, inner = engine.partition(":")
    if kind != "ray":
        if address is not None or actors is not None or gpus:
            raise OptionError("address=, actors= and gpus_per_actor= need engine='ray'")
        return engine, None
    from idness.cluster import Pool, check_answers

    pool = Pool(address, actors, gpus)
    check_answers(pool)  # before anything is loaded
    return inner or ("eager" if gpus else "auto"), pool  # the other engines need a CPU

"""`idness extract`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from idness.cli.cluster import Actors, Address, Engine, Gpus
from idness.cli.options import (
    ClassNames,
    Device,
    Layer,
    Mean,
    Model,
    MultiLabel,
    Partial,
    Size,
    Std,
    Threads,
    model_options,
)


def extract(
    model: Model,
    sets: Annotated[
        list[str],
        typer.Argument(
            help="A benchmark's name or TOML file, for all its sets; or sets: folders, image lists, Parquet, WebDataset tars, .npz."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the store, which idness bench takes as --cache.")],
    weights: Annotated[Path | None, typer.Option(help="The network's weights: safetensors or a checkpoint.")] = None,
    layer: Layer = "",
    multi_label: MultiLabel = None,
    data: Annotated[Path | None, typer.Option(help="Folder at which the benchmark's relative paths begin.")] = None,
    partial: Partial = False,
    size: Size = None,
    mean: Mean = None,
    std: Std = None,
    class_names: ClassNames = None,
    precision: Annotated[str, typer.Option(help="fp32, bf16, or auto, which measures both.")] = "fp32",
    engine: Engine = "auto",
    threads: Threads = None,
    address: Address = None,
    actors: Actors = None,
    gpus_per_actor: Gpus = 0.0,
    batch_size: Annotated[
        int | None, typer.Option(help="Images per forward pass; chosen by their size if not given.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Threads that decode images.")] = None,
    device: Device = "auto",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on in a folder that exists; what it holds is not run again.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress and no remarks.")] = False,
) -> None:
    """Run a network over images once and keep what it makes of them, for bench to start from."""
    import json

    from idness.cli.cluster import divided
    from idness.cli.terminal import command_line, stderr
    from idness.core.progress import STARTING, heard_warnings, shown

    inner, pool = divided(engine, address, actors, gpus_per_actor)
    with shown(quiet=quiet) as listener:
        listener.phase(STARTING, None)
        from idness.activations.store import FeatureStore
        from idness.benchmark.extraction import prepare_extraction, run_extraction
        from idness.benchmark.settings import Settings

        FeatureStore(out).check(resume=resume)
        settings = Settings(
            data=data,
            batch_size=batch_size,
            workers=workers,
            cache=out,
            partial=partial,
            command=command_line(),
        )
        with heard_warnings(listener.warn):
            options = model_options(
                model, weights, layer=layer, multi_label=multi_label, class_names=class_names, pixels=(size, mean, std),
                precision=precision, engine=inner, device=device, threads=threads,
            )  # fmt: skip
            job = prepare_extraction(options, sets, settings, listener=listener)
            if pool is None:
                found = run_extraction(job, listener)
            else:
                from idness.cluster.extracting import extract_on_ray

                found = extract_on_ray(job, pool, listener)
    if as_json:
        print(json.dumps([entry.to_dict() for entry in found], indent=1))
    else:
        for entry in found:
            print(entry.describe())
    if not quiet:
        stderr().print(f"wrote {out}; idness bench takes it as --cache {out}", markup=False, soft_wrap=True)

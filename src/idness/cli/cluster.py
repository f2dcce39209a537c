"""How `--engine ray`, `--address`, `--actors` and `--gpus-per-actor` say where the work is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from idness.cli.options import ENGINE_HELP

if TYPE_CHECKING:
    from idness.cluster.session import Pool

RAY = "ray"
Engine = Annotated[
    str, typer.Option(help=f"{ENGINE_HELP[:-1]}; ray does it in many processes, on many machines with --address.")
]
Address = Annotated[str | None, typer.Option(help="A Ray cluster, with --engine ray; without it Ray is started here.")]
Actors = Annotated[
    int | None,
    typer.Option(
        min=1, help="Processes with a network each, with --engine ray; as many as there are cores or GPUs for."
    ),
]
Gpus = Annotated[float, typer.Option("--gpus-per-actor", min=0, help="GPUs of each process, with --engine ray.")]


def divided(engine: str, address: str | None, actors: int | None, gpus: float) -> tuple[str, Pool | None]:
    """Give what runs the network, and where the work is divided; nowhere unless the engine is `ray`, or `ray:ENGINE`."""
    from idness.core.errors import OptionError

    kind, _, inner = engine.partition(":")
    if kind != RAY:
        if address is not None or actors is not None or gpus:
            raise OptionError("address=, actors= and gpus_per_actor= are for engine='ray'; give that too")
        return engine, None
    from idness.cluster.session import Pool, check_answers

    pool = Pool(address, actors, gpus)
    check_answers(pool)  # before anything is loaded
    # The other engines are for the CPU.
    return inner or ("eager" if gpus else "auto"), pool

"""`idness serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

KEY = "IDNESS_API_KEY"


def serve(
    guard: Annotated[Path, typer.Argument(help="The guard's folder.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8000,
    model: Annotated[str | None, typer.Option(help="The network, where the guard cannot find it by itself.")] = None,
    weights: Annotated[str | None, typer.Option(help="The network's weights, with --model.")] = None,
    batch: Annotated[
        int | None, typer.Option(help="Images per batch; the fastest size is measured otherwise.", min=1)
    ] = None,
    max_body: Annotated[int, typer.Option(help="Bytes of a request.")] = 32_000_000,
    max_pixels: Annotated[int, typer.Option(help="Pixels of an image.")] = 25_000_000,
    max_images: Annotated[int, typer.Option(help="Images per request.")] = 64,
    max_queue: Annotated[int, typer.Option(help="Images that may wait; more are turned away with 503.")] = 512,
    body_timeout: Annotated[float, typer.Option(help="Seconds for a request to arrive.")] = 20.0,
    timeout: Annotated[float, typer.Option(help="Seconds for an answer.")] = 60.0,
) -> None:
    """Serve a guard over HTTP, with a page to look at; IDNESS_API_KEY in the environment asks clients for that key."""
    import os

    from idness.cli.score import load
    from idness.cli.terminal import stderr
    from idness.core.errors import IdnessError

    try:
        from idness.serve import Limits
        from idness.serve import serve as run
        from idness.serve.server import LOOPBACK
    except ImportError as error:
        raise IdnessError(f"serve: needs {error.name}; run pip install 'idness[serve]'") from error
    limits = Limits(
        body=max_body,
        pixels=max_pixels,
        images=max_images,
        queue=max_queue,
        body_seconds=body_timeout,
        answer_seconds=timeout,
    )
    key = os.environ.get(KEY) or None
    console = stderr()
    if host not in LOOPBACK and key is None:
        console.print(f"idness: warning: {host} can be reached by others and no key is set; set {KEY}", markup=False)

    def started(address: str) -> None:
        console.print(f"serving {guard} at {address} (docs at {address}/docs); stop with Ctrl-C", markup=False)

    run(load(guard, model, weights), host=host, port=port, key=key, limits=limits, batch=batch, started=started)
    console.print("stopped; every accepted request was answered")

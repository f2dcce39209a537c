"""`idness serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from idness.cli.options import Engine

KEY = "IDNESS_API_KEY"
SERVED = 20_000
"""For how many images the engine is chosen: a service should not keep its first clients waiting for minutes."""


def serve(
    guard: Annotated[Path, typer.Argument(help="The guard's folder.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8000,
    model: Annotated[str | None, typer.Option(help="The network, where the guard cannot find it by itself.")] = None,
    weights: Annotated[str | None, typer.Option(help="The network's weights, with --model.")] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the token that clients must send (X-API-Key).")
    ] = None,
    no_token: Annotated[
        bool, typer.Option("--no-token", help="Let anybody ask who reaches the address, where it is not loopback.")
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A name that the service is called by, beside localhost and addresses; may be repeated."),
    ] = None,
    engine: Engine = "auto",
    batch: Annotated[
        int | None, typer.Option(help="Images per batch; the fastest size is measured otherwise.", min=1)
    ] = None,
    max_body: Annotated[int, typer.Option(help="Bytes of a request.")] = 32_000_000,
    max_pixels: Annotated[int, typer.Option(help="Pixels of an image.")] = 25_000_000,
    max_request_pixels: Annotated[int, typer.Option(help="Pixels of all images of a request together.")] = 200_000_000,
    max_images: Annotated[int, typer.Option(help="Images per request.")] = 64,
    max_queue: Annotated[int, typer.Option(help="Images that may wait; more are turned away with 503.")] = 512,
    body_timeout: Annotated[float, typer.Option(help="Seconds for a request to arrive.")] = 20.0,
    timeout: Annotated[float, typer.Option(help="Seconds for an answer.")] = 60.0,
) -> None:
    """Serve a guard over HTTP, with a page to look at.

    Clients need the token of --token-file or, without it, of IDNESS_API_KEY in the environment; with neither, anybody on this
    machine may ask.
    """
    from idness.cli.score import load
    from idness.cli.terminal import stderr
    from idness.core.errors import IdnessError

    try:
        from idness.serve import Limits
        from idness.serve import serve as run
        from idness.serve.server import check_reach
    except ImportError as error:
        raise IdnessError(f"serve: needs {error.name}; run pip install 'idness[serve]'") from error
    limits = Limits(
        body=max_body,
        pixels=max_pixels,
        request_pixels=max_request_pixels,
        images=max_images,
        queue=max_queue,
        body_seconds=body_timeout,
        answer_seconds=timeout,
    )
    # Looked at before the network is loaded: what is missing is told at once.
    key = _token(token_file)
    check_reach(host, key, no_token=no_token)
    console = stderr()

    def started(address: str) -> None:
        console.print(f"serving {guard} at {address} (docs at {address}/docs); stop with Ctrl-C", markup=False)

    run(
        load(guard, model, weights, engine, SERVED), host=host, port=port, key=key, no_token=no_token,
        hosts=allow_host or (), limits=limits, batch=batch, started=started,
    )  # fmt: skip
    console.print("stopped; every accepted request was answered")


def _token(file: Path | None) -> str | None:
    """Read the token that clients must send."""
    import os

    from idness.core.errors import OptionError
    from idness.serve.intake import check_key

    if file is None:
        given = os.environ.get(KEY)
        return check_key(given, KEY) if given else None
    try:
        text = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeError) as error:
        raise OptionError(f"serve: token_file= cannot be read ({error}); give a file with one line of text") from error
    return check_key(text, "token_file=")

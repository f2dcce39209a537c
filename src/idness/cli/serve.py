"""`idness serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from idness.cli.options import Engine

KEY = "IDNESS_API_KEY"
SERVED = 20_000
"""Number of images for which the engine is chosen, so that its choice does not delay the start by minutes."""


def serve(
    guard: Annotated[Path, typer.Argument(help="The guard's folder.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 selects a free one.", min=0, max=65535)] = 8000,
    model: Annotated[str | None, typer.Option(help="The network, if the guard does not name it.")] = None,
    weights: Annotated[str | None, typer.Option(help="The network's weights, with --model.")] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token that clients must send (X-API-Key).")
    ] = None,
    no_token: Annotated[
        bool, typer.Option("--no-token", help="Serve anyone, even on an address that other machines can reach.")
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A host name of the service besides localhost and IP addresses; may be repeated."),
    ] = None,
    engine: Engine = "auto",
    batch: Annotated[int, typer.Option(help="Maximum images per batch.", min=1)] = 16,
    max_body: Annotated[int, typer.Option(help="Maximum bytes per request.")] = 32_000_000,
    max_pixels: Annotated[int, typer.Option(help="Maximum pixels per image.")] = 25_000_000,
    max_request_pixels: Annotated[int, typer.Option(help="Maximum pixels of all images of a request.")] = 200_000_000,
    max_images: Annotated[int, typer.Option(help="Maximum images per request.")] = 64,
    max_queue: Annotated[int, typer.Option(help="Maximum waiting images; more are refused with 503.")] = 512,
    body_timeout: Annotated[float, typer.Option(help="Seconds for a request to arrive.")] = 20.0,
    timeout: Annotated[float, typer.Option(help="Seconds for an answer.")] = 60.0,
) -> None:
    """Serve a guard over HTTP, with a web page.

    Clients need the token from --token-file or the environment variable IDNESS_API_KEY. Without either, everyone on this machine
    may use the service.
    """
    from idness.cli.score import load
    from idness.cli.terminal import stderr
    from idness.core.errors import IdnessError

    try:
        from idness.serve import Limits
        from idness.serve import serve as run
        from idness.serve.middleware import check_reach
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
    # Checked before the network is loaded.
    key = _token(token_file)
    check_reach(host, key, no_token=no_token)
    console = stderr()

    def started(address: str) -> None:
        console.print(f"serving {guard} at {address} (API docs: {address}/docs); press Ctrl-C to stop", markup=False)

    run(
        load(guard, model, weights, engine, SERVED), host=host, port=port, key=key, no_token=no_token,
        hosts=allow_host or (), limits=limits, batch=batch, started=started,
    )  # fmt: skip
    console.print("stopped; all accepted requests were answered")


def _token(file: Path | None) -> str | None:
    """Return the token that clients must send."""
    import os

    from idness.core.errors import OptionError
    from idness.serve.middleware import check_key

    if file is None:
        given = os.environ.get(KEY)
        return check_key(given, KEY) if given else None
    try:
        text = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeError) as error:
        raise OptionError(f"serve: token_file= cannot be read ({error}); give a file with one line of text") from error
    return check_key(text, "token_file=")

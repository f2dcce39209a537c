"""The HTTP application of a guard, and the server that runs it."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, Response
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException

from idness import __version__
from idness.core.errors import ModelError, OptionError
from idness.core.text import shorten
from idness.serve.middleware import AccessMiddleware, check_key, check_reach
from idness.serve.protocol import add_protocol
from idness.serve.schemas import RESPONSES, SCORE_BODY, ApiError, Limits, error_response, read_uploads
from idness.serve.service import BATCH, Service, samples

if TYPE_CHECKING:
    from idness.guard.guard import Guard
    from idness.guard.onnx import GraphGuard

PAGE = Path(__file__).parent / "page"
CONNECTIONS = 1_000
"""Maximum number of open connections, below the usual limit of 1,024 open files."""
LAST_CALL = 0.2
"""Seconds after the stop signal during which already open connections can send their request."""
ONE_HOUR = {"Cache-Control": "private, max-age=3600"}


def serve(
    guard: Guard | GraphGuard,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    key: str | None = None,
    no_token: bool = False,
    hosts: Collection[str] = (),
    limits: Limits | None = None,
    batch: int = BATCH,
    name: str = "guard",
    started: Callable[[str], None] | None = None,
) -> None:
    """Serve a guard until SIGTERM or SIGINT, then answer accepted requests and return.

    Args:
        guard: a calibrated guard, possibly an exported one.
        host: address to listen on.
        port: port to listen on; 0 selects a free one.
        key: API key that clients must send; `None` allows everyone.
        no_token: whether to allow, without a key, an address that other machines can reach.
        hosts: names of the service besides `localhost` and IP addresses; checked only without a key.
        limits: limits on requests.
        batch: maximum images per batch.
        name: name of the guard in the Open Inference Protocol.
        started: called with the URL once connections are accepted.

    Raises:
        OptionError: if the address cannot be used, or needs a key.
        ModelError: if the network fails on its first image.
    """
    check_reach(host, key, no_token=no_token)
    service = Service(guard, limits or Limits(), batch, name)
    server = Server(service, host=host, port=port, key=key, hosts=hosts)
    server.on_start = started
    with server.listener:
        try:
            service.worker.warm_up()
        except Exception as error:  # a network can raise anything
            reason = shorten(f"{type(error).__name__}: {error}", 300)
            raise ModelError(
                f"serve: the network fails on its first image ({reason}); use the network that was calibrated"
            ) from error
        server.run([server.listener])  # connections wait in the kernel until then


class Server(uvicorn.Server):
    """A server that answers all accepted requests before it stops; `access` are arguments of `make_app`."""

    on_start: Callable[[str], None] | None = None

    def __init__(self, service: Service, *, host: str = "127.0.0.1", port: int = 0, **access: Any) -> None:
        self.service = service
        super().__init__(
            uvicorn.Config(
                make_app(service, **access),
                http="h11",
                loop="asyncio",
                access_log=False,
                log_level="error",
                server_header=False,
                timeout_keep_alive=10,
                timeout_graceful_shutdown=int(service.limits.stop_seconds),
                limit_concurrency=CONNECTIONS,
            )
        )
        logging.getLogger("python_multipart").setLevel(logging.ERROR)  # malformed forms could fill the log
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self.listener = socket.create_server((host, port), family=family, backlog=1024)
        except (OSError, OverflowError) as error:
            raise OptionError(
                f"serve: cannot listen on {host}:{port} ({error}); choose another host= or port="
            ) from error
        # Inherited by connections. Without TCP_NODELAY, the body of a response waits 40 ms for the acknowledgement of its head
        # (Nagle); asyncio sets the option only on sockets created with an explicit protocol.
        self.listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections, then report the URL; signals are already handled."""
        await super().startup(sockets)
        if self.on_start is not None:
            host, port = self.listener.getsockname()[:2]
            self.on_start(f"http://{f'[{host}]' if ':' in host else host}:{port}")

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Stop on a signal. Unlike uvicorn, do not raise the signal again afterwards: stopping is a success."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse new connections, and answer the requests of existing ones."""
        self.service.stopping = True
        self.listener.listen(0)  # the kernel completes no more connections; the event loop accepts the completed ones
        await asyncio.sleep(LAST_CALL)
        await super().shutdown(sockets)


def make_app(service: Service, key: str | None = None, hosts: Collection[str] = ()) -> FastAPI:
    """Return the application; `key` and `hosts` are those of `serve`."""
    app = FastAPI(
        title="idness",
        version=__version__,
        summary="Out-of-distribution detection for an image classifier.",
        lifespan=service.lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.add_middleware(AccessMiddleware, key=key and check_key(key), hosts=hosts, record=service.monitor.request)
    _add_api(app, service)
    add_protocol(app, service)

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> Response:
        return error_response(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return error_response(ApiError(422, f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"))

    @app.get("/docs", include_in_schema=False)
    async def docs() -> FileResponse:
        return FileResponse(PAGE / "docs.html")

    app.mount("/", StaticFiles(directory=PAGE, html=True))  # after the routes, which take precedence
    return app


def _add_api(app: FastAPI, service: Service) -> None:
    limits, gallery = service.limits, service.gallery

    @app.post("/v1/score", responses=RESPONSES, openapi_extra=SCORE_BODY, tags=["score"])
    async def score(
        request: Request,
        neighbours: int = Query(0, ge=0, le=24, description="Number of nearest calibration images to return."),
        picture: bool = Query(False, description="Whether to return each image as the network saw it."),
    ) -> dict[str, Any]:
        """Judge one or many images. An image that cannot be judged has an error instead of a verdict."""
        async with service.body(request) as body:
            uploads = await read_uploads(request.headers, body, limits)
            return {"recall": service.facts["recalls"][0], "results": await service.judge(uploads, neighbours, picture)}

    @app.get("/v1/guard", tags=["look"])
    async def describe_guard() -> dict[str, Any]:
        """Return the network, method, thresholds, guarantee and limits."""
        return service.facts

    @app.get("/v1/calibration", tags=["look"])
    async def calibration(
        label: int | None = Query(None, description="A class index, if each class has its own threshold."),
    ) -> dict[str, Any]:
        """Return a histogram and quantiles of the calibration scores."""
        return service.calibration_info(label)

    @app.get("/v1/calibration/{index}", response_class=Response, tags=["look"])
    async def calibration_image(index: int) -> Response:
        """Return a calibration image as a thumbnail."""
        if gallery is None or not 0 <= index < len(gallery):
            raise ApiError(404, f"no calibration image {index}")
        content = gallery.thumbnails[index]
        kind = "image/png" if content.startswith(b"\x89PNG") else "image/webp"
        return Response(content, media_type=kind, headers=ONE_HOUR)

    @app.get("/v2/health/live", tags=["v2"])
    @app.get("/healthz", tags=["watch"])
    async def healthz() -> dict[str, str | bool]:
        """Report that the process is running."""
        return {"status": "ok", "live": True}

    @app.get("/v2/health/ready", tags=["v2"])
    @app.get("/readyz", tags=["watch"])
    async def readyz() -> dict[str, str | bool]:
        """Report whether the service accepts requests."""
        service.check_ready()
        return {"status": "ready", "ready": True}

    @app.get("/metrics", response_class=Response, tags=["watch"])
    async def metrics() -> Response:
        """Return the metrics in the Prometheus text format."""
        return Response(generate_latest(service.monitor.registry), media_type=CONTENT_TYPE_LATEST)

    # These two are not async, so that a thread reads the files the first time.
    @app.get("/v1/samples", tags=["look"])
    def list_samples() -> list[dict[str, str | int]]:
        """List the embedded sample images."""
        found = enumerate(samples(service.class_names))
        return [{"index": index, "title": title, "role": role} for index, (title, role, *_) in found]

    @app.get("/v1/samples/{index}", response_class=Response, tags=["look"])
    def sample_image(index: int) -> Response:
        """Return an embedded sample image."""
        found = samples(service.class_names)
        if not 0 <= index < len(found):
            raise ApiError(404, f"no sample {index}")
        *_, content, kind = found[index]
        return Response(content, media_type=kind, headers=ONE_HOUR)

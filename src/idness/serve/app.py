"""The HTTP application of a guard, and the server that runs it."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException

from idness import __version__
from idness.core.errors import ModelError, OptionError
from idness.core.wording import shown
from idness.guard.guard import Guard
from idness.serve.middleware import AccessMiddleware, check_key, check_reach
from idness.serve.schemas import (
    SCORE_BODY,
    ApiError,
    CalibrationInfo,
    GuardInfo,
    Limits,
    SampleInfo,
    ScoreAnswer,
    State,
    error_response,
    read_uploads,
)
from idness.serve.service import Service, has_embedded_classes, samples
from idness.serve.worker import BATCH

PAGE = Path(__file__).parent / "page"
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
CONNECTIONS = 1_000
"""Open connections; below the usual limit of 1,024 open files."""
LAST_CALL = 0.2
"""Seconds after the signal to stop in which connections that were made before it can send their request."""
ONE_HOUR = {"Cache-Control": "private, max-age=3600"}


def serve(
    guard: Guard,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    key: str | None = None,
    no_token: bool = False,
    hosts: Collection[str] = (),
    limits: Limits | None = None,
    batch: int = BATCH,
    started: Callable[[str], None] | None = None,
) -> None:
    """Serve a guard until SIGTERM or SIGINT, then answer accepted requests and return.

    Args:
        guard: a calibrated guard.
        host: address to listen on.
        port: port to listen on; 0 selects a free one.
        key: API key that clients must send; `None` allows everyone.
        no_token: allow an address that other machines can reach without a key.
        hosts: names of the service besides `localhost` and IP addresses; checked only without a key.
        limits: limits on requests.
        batch: maximum images per batch.
        started: called with the URL once connections are accepted.

    Raises:
        OptionError: if the address cannot be used, or needs a key.
        ModelError: if the network fails on its first image.
    """
    check_reach(host, key, no_token=no_token)
    server = Server(guard, host=host, port=port, key=key, hosts=hosts, limits=limits, batch=batch, started=started)
    with server.listener:
        server.run([server.listener])
    failure = server.service.failure
    if failure is not None:
        reason = shown(f"{type(failure).__name__}: {failure}", 300)
        raise ModelError(f"serve: the network fails on its first image ({reason}); use the network that was calibrated")


class Server(uvicorn.Server):
    """A server for a guard that loses no request when it stops; `server.run([server.listener])` runs it.

    The arguments are those of `serve`.
    """

    def __init__(
        self,
        guard: Guard,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        key: str | None = None,
        hosts: Collection[str] = (),
        limits: Limits | None = None,
        batch: int = BATCH,
        started: Callable[[str], None] | None = None,
    ) -> None:
        self.service = Service(guard, limits or Limits(), batch)
        self.service.end = lambda: setattr(self, "should_exit", True)
        self._on_start = started
        super().__init__(
            uvicorn.Config(
                make_app(self.service, key, hosts),
                http="h11",
                loop="asyncio",
                access_log=False,
                log_level="error",
                server_header=False,
                timeout_keep_alive=10,
                timeout_graceful_shutdown=int(self.service.limits.stop_seconds),
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
        # Inherited by connections. Otherwise the body of a response waits 40 ms for the acknowledgement of its head (Nagle):
        # asyncio sets the option only on sockets that were created with an explicit protocol.
        self.listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections, and report the URL."""
        await super().startup(sockets)
        if self._on_start:
            host, port = self.listener.getsockname()[:2]
            self._on_start(f"http://{f'[{host}]' if ':' in host else host}:{port}")

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Stop on a signal. Unlike uvicorn, do not raise it again afterwards: a stop is a success."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse new connections, and answer the requests of those that were made."""
        self.service.stopping = True
        self.listener.listen(0)  # the kernel completes no more connections; the event loop accepts the completed ones
        await asyncio.sleep(LAST_CALL)
        await super().shutdown(sockets)


def make_app(service: Service, key: str | None = None, hosts: Collection[str] = ()) -> FastAPI:
    """Return the application.

    Args:
        service: the service.
        key: API key that clients must send; `None` allows everyone.
        hosts: names of the service besides `localhost` and IP addresses.
    """
    app = FastAPI(
        title="idness",
        version=__version__,
        summary="Out-of-distribution detection for an image classifier.",
        lifespan=service.lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.add_middleware(AccessMiddleware, key=key and check_key(key), hosts=hosts, record=service.monitor.request)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    _add_api(app, service)
    _add_samples(app, service)
    _add_operations(app, service)
    for file in PAGE.iterdir():
        path = {"index.html": "/", "docs.html": "/docs"}.get(file.name, f"/{file.name}")
        app.add_api_route(path, _page_file(file), include_in_schema=False, response_class=Response)
    return app


def _page_file(file: Path) -> Callable[[], Awaitable[Response]]:
    content = file.read_bytes()

    async def respond() -> Response:
        return Response(content, media_type=KINDS[file.suffix], headers={"Cache-Control": "no-cache"})

    return respond


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return error_response(error)


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return error_response(ApiError(422, f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"))


def _add_api(app: FastAPI, service: Service) -> None:
    guard, limits = service.guard, service.limits

    @app.post("/v1/score", response_model=ScoreAnswer, openapi_extra=SCORE_BODY, tags=["score"])
    async def score(
        request: Request,
        neighbours: int = Query(0, ge=0, le=24, description="Number of nearest calibration images to return."),
        picture: bool = Query(False, description="Whether to return each image as the network saw it."),
    ) -> dict[str, Any]:
        """Judge one or many images. An image that cannot be judged has a problem instead of a verdict."""
        async with service.body(request) as body:
            uploads = await read_uploads(request.headers, body, limits)
            return {"recall": guard.recalls[0], "results": await service.judge(uploads, neighbours, picture)}

    @app.get("/v1/guard", response_model=GuardInfo, tags=["look"])
    async def describe_guard() -> dict[str, Any]:
        """Return network, method, thresholds, guarantee and limits."""
        return {
            "network": Path((guard.spec or type(guard.model).__name__).replace("\\", "/")).name,
            "method": guard.detector.label(),
            "recalls": list(guard.recalls),
            "thresholds": {f"{recall:g}": guard.threshold(recall).tolist() for recall in guard.recalls},
            "classes": None if guard.class_names is None else list(guard.class_names),
            "calibration_images": len(service.calibration),
            "per_class": service.calibration.per_class,
            "promise": guard.promise(),
            "gallery": 0 if guard.gallery is None else len(guard.gallery),
            "max_images": limits.images,
            "max_bytes": limits.body,
            "max_pixels": limits.pixels,
            "max_request_pixels": limits.request_pixels,
        }

    @app.get("/v1/calibration", response_model=CalibrationInfo, tags=["look"])
    async def calibration(
        label: int | None = Query(None, description="A class index, if each class has its own threshold."),
    ) -> dict[str, Any]:
        """Return a histogram and quantiles of the calibration scores."""
        return service.calibration_info(label)

    @app.get("/v1/calibration/{index}", response_class=Response, tags=["look"])
    async def calibration_image(index: int) -> Response:
        """Return a calibration image as a thumbnail."""
        if guard.gallery is None or not 0 <= index < len(guard.gallery):
            raise ApiError(404, f"no calibration image {index}")
        content = guard.gallery.thumbnails[index]
        kind = "image/png" if content.startswith(b"\x89PNG") else "image/webp"
        return Response(content, media_type=kind, headers=ONE_HOUR)


def _add_samples(app: FastAPI, service: Service) -> None:
    @app.get("/v1/samples", response_model=list[SampleInfo], tags=["look"])
    async def list_samples() -> list[dict[str, Any]]:
        """List the embedded sample images."""
        listed = await asyncio.to_thread(samples)  # reads files the first time
        own = has_embedded_classes(service.guard.class_names)
        return [
            {"index": index, "title": sample.title, "role": sample.role if own else "picture"}
            for index, sample in enumerate(listed)
        ]

    @app.get("/v1/rates", response_model=dict[str, list[float]], tags=["look"])
    async def rates() -> dict[str, list[float]]:
        """Return p-values of embedded ID, near-OOD and far-OOD images; empty if the network has other classes."""
        return await service.rates()

    @app.get("/v1/samples/{index}", response_class=Response, tags=["look"])
    async def sample_image(index: int) -> Response:
        """Return an embedded sample image."""
        if not 0 <= index < len(samples()):
            raise ApiError(404, f"no sample {index}")
        return Response(samples()[index].png, media_type="image/png", headers=ONE_HOUR)


def _add_operations(app: FastAPI, service: Service) -> None:
    @app.get("/healthz", response_model=State, tags=["watch"])
    async def healthz() -> dict[str, str]:
        """Report whether the process works."""
        if not service.worker.thread.is_alive():
            raise ApiError(500, "the worker has ended; restart the server")
        return {"status": "ok"}

    @app.get("/readyz", response_model=State, tags=["watch"])
    async def readyz() -> dict[str, str]:
        """Report whether the service accepts requests."""
        if service.stopping or not service.worker.ready.is_set():
            raise ApiError(503, "stopping" if service.stopping else "the network is warming up", {"Retry-After": "1"})
        return {"status": "ready"}

    @app.get("/metrics", response_class=Response, tags=["watch"])
    async def metrics() -> Response:
        """Return the metrics in the Prometheus text format."""
        return Response(generate_latest(service.monitor.registry), media_type=CONTENT_TYPE_LATEST)

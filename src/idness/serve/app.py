"""The HTTP application: what can be asked of a guard."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException

from idness import __version__
from idness.guard.guard import Guard
from idness.serve.intake import App, Intake
from idness.serve.limits import Limits
from idness.serve.problems import Problem
from idness.serve.samples import of_embedded_classes, samples
from idness.serve.schemas import SCORE_BODY, CalibrationInfo, GuardInfo, SampleInfo, ScoreAnswer, State
from idness.serve.service import Service, Wish
from idness.serve.uploads import read_uploads

PAGE = Path(__file__).parent / "page"
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/docs": ("docs.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/shared.js": ("shared.js", "text/javascript; charset=utf-8"),
    "/list.js": ("list.js", "text/javascript; charset=utf-8"),
    "/chart.js": ("chart.js", "text/javascript; charset=utf-8"),
    "/docs.js": ("docs.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
"""The page's files, each under its own address: no path of a request is ever looked up."""


def make_app(
    guard: Guard,
    limits: Limits | None = None,
    *,
    key: str | None = None,
    batch: int | None = None,
    hosts: Collection[str] = (),
) -> tuple[App, Service]:
    """Make the application for a guard.

    Args:
        guard: a calibrated guard.
        limits: the limits.
        key: the API key; none means open.
        batch: images per batch at most; the fastest size where not given.
        hosts: names that the service is called by, beside `localhost` and addresses.
    """
    bounds = limits or Limits()
    service = Service(guard, bounds, batch)
    app = FastAPI(title="idness", version=__version__, summary="Is this image one that the network can be trusted with?",
                  lifespan=service.lifespan, docs_url=None, redoc_url=None)  # fmt: skip
    _add_errors(app)
    _add_scoring(app, service)
    _add_looking(app, service)
    _add_watching(app, service)
    return Intake(app, bounds, key, service.monitor.request, hosts), service


def _add_scoring(app: FastAPI, service: Service) -> None:
    @app.post("/v1/score", response_model=ScoreAnswer, openapi_extra=SCORE_BODY, tags=["score"])
    async def score(
        request: Request,
        neighbours: int = Query(0, ge=0, le=24, description="How many of the nearest calibration images to name."),
        picture: bool = Query(False, description="Whether to send each image back as the network saw it."),
    ) -> dict[str, Any]:
        """Judge one or many images; one that cannot be judged has a problem instead of a verdict."""
        uploads = await read_uploads(request, service.limits)
        results = await service.judge(uploads, Wish(neighbours, picture))
        return {"recall": service.guard.recalls[0], "results": results}


def _add_looking(app: FastAPI, service: Service) -> None:
    guard = service.guard

    @app.get("/v1/guard", response_model=GuardInfo, tags=["look"])
    async def describe_guard() -> dict[str, Any]:
        """Describe the guard: network, method, thresholds, promise and limits."""
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
            "max_images": service.limits.images,
            "max_bytes": service.limits.body,
            "max_pixels": service.limits.pixels,
            "max_request_pixels": service.limits.request_pixels,
        }

    @app.get("/v1/calibration", response_model=CalibrationInfo, tags=["look"])
    async def calibration(
        label: int | None = Query(None, description="A class, where each has a threshold of its own."),
    ) -> dict[str, Any]:
        """Give the calibration scores as a histogram and quantiles."""
        return service.calibration_info(label)

    @app.get("/v1/calibration/{index}", response_class=Response, tags=["look"])
    async def calibration_image(index: int) -> Response:
        """Show a calibration image, small."""
        if guard.gallery is None or not 0 <= index < len(guard.gallery):
            raise Problem(404, f"there is no calibration image {index}")
        content = guard.gallery.thumbnails[index]
        kind = "image/png" if content.startswith(b"\x89PNG") else "image/webp"
        return Response(content, media_type=kind, headers={"Cache-Control": "private, max-age=3600"})

    @app.get("/v1/samples", response_model=list[SampleInfo], tags=["look"])
    async def list_samples() -> list[dict[str, Any]]:
        """List embedded pictures to try."""
        listed = await asyncio.to_thread(samples)  # reads files the first time
        own = of_embedded_classes(guard.class_names)
        return [
            {"index": index, "title": sample.title, "role": sample.role if own else "picture"}
            for index, sample in enumerate(listed)
        ]

    @app.get("/v1/rates", response_model=dict[str, list[float]], tags=["look"])
    async def rates() -> dict[str, list[float]]:
        """Give p-values of embedded ID, near and far OOD images: the rates at any recall follow; nothing for other classes."""
        return await service.rates()

    @app.get("/v1/samples/{index}", response_class=Response, tags=["look"])
    async def sample_image(index: int) -> Response:
        """Show an embedded picture."""
        if not 0 <= index < len(samples()):
            raise Problem(404, f"there is no sample {index}")
        return Response(
            samples()[index].png, media_type="image/png", headers={"Cache-Control": "private, max-age=3600"}
        )


def _add_watching(app: FastAPI, service: Service) -> None:
    @app.get("/healthz", response_model=State, tags=["watch"])
    async def healthz() -> dict[str, str]:
        """Say whether the process works."""
        if not service.batcher.alive:
            raise Problem(500, "the worker has ended; restart the server")
        return {"status": "ok"}

    @app.get("/readyz", response_model=State, tags=["watch"])
    async def readyz() -> dict[str, str]:
        """Say whether requests are welcome."""
        if service.stopping or not service.batcher.ready.is_set():
            raise Problem(503, "stopping" if service.stopping else "the network is warming up", {"Retry-After": "1"})
        return {"status": "ready"}

    @app.get("/metrics", response_class=Response, tags=["watch"])
    async def metrics() -> Response:
        """Give the counters as Prometheus reads them."""
        return Response(generate_latest(service.monitor.registry), media_type=CONTENT_TYPE_LATEST)

    for address, (name, kind) in FILES.items():
        app.add_api_route(address, _file(name, kind), include_in_schema=False, response_class=Response)


def _file(name: str, kind: str) -> Any:
    content = (PAGE / name).read_bytes()

    async def give() -> Response:
        return Response(content, media_type=kind, headers={"Cache-Control": "no-cache"})

    return give


def _add_errors(app: FastAPI) -> None:
    async def problem(_: Request, error: Exception) -> Response:
        assert isinstance(error, Problem)
        return Response(error.body(), error.status, error.headers, "application/json")

    async def missing(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)

    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return JSONResponse({"error": f"{where}: {first['msg']}"}, 422)

    async def failed(_: Request, error: Exception) -> Response:
        # What went wrong is logged by the server; a stranger need not know.
        return JSONResponse({"error": f"the server failed on this request ({type(error).__name__})"}, 500)

    app.add_exception_handler(Exception, failed)
    app.add_exception_handler(Problem, problem)
    app.add_exception_handler(HTTPException, missing)
    app.add_exception_handler(RequestValidationError, invalid)

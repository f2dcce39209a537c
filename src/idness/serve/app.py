"""The HTTP application: what can be asked of a guard."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import torch
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException

from idness import __version__
from idness.core.errors import DataError, InputError
from idness.data import decode
from idness.guard.guard import Guard
from idness.serve.batching import Answer, Batcher
from idness.serve.intake import App, Intake
from idness.serve.limits import Limits
from idness.serve.monitoring import Monitor
from idness.serve.problems import Problem
from idness.serve.samples import samples
from idness.serve.schemas import SCORE_BODY, CalibrationInfo, GuardInfo, SampleInfo, ScoreAnswer, State
from idness.serve.uploads import Upload, read_uploads

PAGE = Path(__file__).parent / "page"
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/docs": ("docs.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/chart.js": ("chart.js", "text/javascript; charset=utf-8"),
    "/docs.js": ("docs.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
"""The page's files, each under its own address: no path of a request is ever looked up."""
BINS = 48


class Service:
    """Holds what the routes share: the guard, its worker, the decoders and the counters."""

    def __init__(self, guard: Guard, limits: Limits, batch: int | None = None) -> None:
        if guard.calibration is None or guard.preprocessing is None:
            raise InputError(
                "serve: the guard must be calibrated and know its preprocessing; make it with idness calibrate"
            )
        self.guard, self.limits, self.calibration = guard, limits, guard.calibration.to("cpu")
        self.monitor = Monitor(self.calibration)
        self.batcher = Batcher(guard, size=batch, room=limits.queue, told=self.monitor.batch)
        self.monitor.watch_queue(lambda: self.batcher.waiting)
        self.decoders = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="idness-decode")
        self.stopping = False

    @asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """Start the worker, and stop it when every accepted request has been answered."""
        self.batcher.start()
        try:
            yield
        finally:
            self.stopping = True
            await asyncio.to_thread(self.batcher.stop)
            self.decoders.shutdown()

    async def judge(self, uploads: list[Upload]) -> list[Answer]:
        """Decode and judge images within the time that a request has."""
        with self.batcher.reserved(len(uploads)):
            try:
                async with asyncio.timeout(self.limits.answer_seconds):
                    return list(
                        await asyncio.gather(
                            *(self._judge(index, upload) for index, upload in enumerate(uploads, start=1))
                        )
                    )
            except TimeoutError:
                raise Problem(
                    504, f"no answer within {self.limits.answer_seconds:g} seconds; send fewer images"
                ) from None

    async def _judge(self, index: int, upload: Upload) -> Answer:
        loop = asyncio.get_running_loop()
        image = await loop.run_in_executor(self.decoders, self._decoded, index, upload)
        return await asyncio.wrap_future(self.batcher.submit(image))

    def _decoded(self, index: int, upload: Upload) -> torch.Tensor:
        assert self.guard.preprocessing is not None
        try:
            return self.guard.preprocessing(decode(upload.content, max_pixels=self.limits.pixels))
        except DataError as error:
            reason = str(error).removeprefix("image: ")
            raise Problem(422, f"image {index} ({upload.name[:80]}): {reason}") from error

    def neighbours(self, features: torch.Tensor, count: int) -> list[dict[str, Any]]:
        """Describe the nearest calibration images."""
        gallery = self.guard.gallery
        if gallery is None or count == 0:
            return []
        return [
            {
                "index": index,
                "similarity": similarity,
                "class": self._name(int(gallery.labels[index])),
                "score": float(gallery.scores[index]),
            }
            for index, similarity in gallery.nearest(features.unsqueeze(0), count)[0]
        ]

    def calibration_info(self, label: int | None) -> dict[str, Any]:
        """Describe the calibration scores, all or those of one predicted class, by histogram and quantiles."""
        scores = self.calibration.scores
        if label is not None and self.calibration.per_class:
            if not 0 <= label < len(self.calibration.sizes):
                raise Problem(404, f"there is no class {label}")
            sizes = self.calibration.sizes.tolist()
            scores = scores[sum(sizes[:label]) : sum(sizes[: label + 1])]
        ordered = scores.sort().values.double()
        low, high = float(ordered[0]), float(ordered[-1])
        high = high if high > low else low + 1.0
        counts = torch.histc(ordered, BINS, low, high)
        ranks = torch.linspace(0, len(ordered) - 1, min(len(ordered), 1001)).round().long()
        return {
            "images": len(ordered),
            "low": low,
            "high": high,
            "counts": [int(count) for count in counts],
            "quantiles": ordered[ranks].tolist(),
        }

    def _name(self, label: int) -> str:
        return self.guard.class_names[label] if self.guard.class_names else str(label)


def make_app(
    guard: Guard, limits: Limits | None = None, *, key: str | None = None, batch: int | None = None
) -> tuple[App, Service]:
    """Make the application for a guard.

    Args:
        guard: a calibrated guard.
        limits: the limits.
        key: the API key; none means open.
        batch: images per batch at most; the fastest size where not given.
    """
    bounds = limits or Limits()
    service = Service(guard, bounds, batch)
    app = FastAPI(title="idness", version=__version__, summary="Is this image one that the network can be trusted with?",
                  lifespan=service.lifespan, docs_url=None, redoc_url=None)  # fmt: skip
    _add_errors(app)
    _add_scoring(app, service)
    _add_looking(app, service)
    _add_watching(app, service)
    return Intake(app, bounds, key, service.monitor.request), service


def _add_scoring(app: FastAPI, service: Service) -> None:
    @app.post("/v1/score", response_model=ScoreAnswer, openapi_extra=SCORE_BODY, tags=["score"])
    async def score(
        request: Request,
        neighbours: int = Query(0, ge=0, le=24, description="How many of the nearest calibration images to name."),
    ) -> dict[str, Any]:
        """Judge one or many images."""
        uploads = await read_uploads(request, service.limits)
        answers = await service.judge(uploads)
        service.monitor.images(answer.record for answer in answers)
        results = [
            answer.record | {"name": upload.name, "neighbours": service.neighbours(answer.features, neighbours)}
            for upload, answer in zip(uploads, answers, strict=True)
        ]
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
        # What is ID and what is OOD is known only for networks of the embedded classes.
        own = {sample.title for sample in listed if sample.role == "known"} == set(guard.class_names or ())
        return [
            {"index": index, "title": sample.title, "role": sample.role if own else "picture"}
            for index, sample in enumerate(listed)
        ]

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

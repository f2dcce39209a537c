"""The Open Inference Protocol (v2) of KServe and Triton, with the extension for binary tensors.

The guard is a model with the input `images`: preprocessed float32 (N, C, H, W), as an exported graph takes, or N encoded image
files.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from numpy.typing import NDArray

from idness import __version__
from idness.guard.verdict import LOWEST
from idness.serve.schemas import ApiError, Upload, decode_base64
from idness.serve.service import Service

LENGTH = "Inference-Header-Content-Length"
"""The header with the length of the JSON, which binary tensors follow."""
FIELDS: dict[str, tuple[str, Any]] = {
    "label": ("INT64", "<i8"),
    "score": ("FP32", "<f4"),
    "p_value": ("FP32", "<f4"),
    "is_ood": ("BOOL", "?"),
}
"""The outputs and their types."""


def add_protocol(app: FastAPI, service: Service) -> None:
    """Add the routes of the protocol."""

    def check(model: str) -> None:
        if model != service.name:
            raise ApiError(404, f"unknown model {model[:80]!r}; the model of this server is {service.name!r}")

    @app.get("/v2", tags=["v2"])
    async def server() -> dict[str, Any]:
        """Return the name, version and extensions of the server."""
        return {"name": "idness", "version": __version__, "extensions": ["binary_tensor_data"]}

    @app.get("/v2/models/{model}/versions/1/ready", include_in_schema=False)
    @app.get("/v2/models/{model}/ready", tags=["v2"])
    async def model_ready(model: str) -> dict[str, Any]:
        """Report whether the guard accepts requests."""
        check(model)
        service.check_ready()
        return {"name": model, "ready": True}

    @app.get("/v2/models/{model}/versions/1", include_in_schema=False)
    @app.get("/v2/models/{model}", tags=["v2"])
    async def metadata(model: str) -> dict[str, Any]:
        """Return the inputs and outputs of the guard."""
        check(model)
        return {
            "name": model,
            "versions": ["1"],
            "platform": "idness",
            "inputs": [_tensor("images", "FP32", -1, *service.input_shape)],
            "outputs": [_tensor(name, kind, -1) for name, (kind, _) in FIELDS.items()],
        }

    @app.post("/v2/models/{model}/versions/1/infer", include_in_schema=False)
    @app.post("/v2/models/{model}/infer", tags=["v2"])
    async def infer(model: str, request: Request) -> Response:
        """Judge images: preprocessed (`FP32`), or encoded files (`BYTES`, in base64 within JSON)."""
        check(model)
        async with service.body(request) as body:
            asked, images = await asyncio.to_thread(read, request.headers.get(LENGTH), body, service)
            if isinstance(images, list):
                records = await service.judge(images)
                wrong = [f"{record['image']}: {record['error']}" for record in records if "error" in record]
                if wrong:
                    raise ApiError(422, wrong[0])
            else:
                records = await service.judge_inputs(images)
        return respond(service, asked, records)


def _tensor(name: str, kind: str, *shape: int) -> dict[str, Any]:
    return {"name": name, "datatype": kind, "shape": list(shape)}


def read(
    length: str | None, body: bytes, service: Service
) -> tuple[dict[str, Any], NDArray[np.float32] | list[Upload]]:
    """Return the JSON of a request, and its images."""
    try:
        cut = len(body) if length is None else int(length)
        asked = json.loads(body[:cut])
        [entry] = [entry for entry in asked["inputs"] if entry["name"] == "images"]
        kind, shape = entry["datatype"], [int(side) for side in entry["shape"]]
        size = entry.get("parameters", {}).get("binary_data_size")
        data = entry["data"] if size is None else body[cut : cut + int(size)]
        if kind == "BYTES":
            images: NDArray[np.float32] | list[Upload] = _files(data)
        elif kind == "FP32":
            values = np.frombuffer(data, "<f4") if isinstance(data, bytes) else np.array(data, np.float32)
            images = values.reshape(shape).astype(np.float32)  # a copy, which is writable
        else:
            raise ApiError(422, f"the datatype must be FP32, or BYTES for images, got {str(kind)[:20]}")
    except ApiError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ApiError(400, "the request must be JSON with the input 'images' of type FP32 or BYTES") from error
    if not 0 < len(images) <= service.limits.images:
        raise ApiError(413, f"a request must contain 1 to {service.limits.images} images, got {len(images)}")
    wanted = service.input_shape
    if not isinstance(images, list) and (
        images.ndim != 4 or any(side not in (-1, given) for side, given in zip(wanted, images.shape[1:], strict=True))
    ):
        raise ApiError(422, f"'images' must have the shape {[-1, *wanted]}, got {shape}")
    return asked, images


def _files(data: Any) -> list[Upload]:
    parts: list[bytes | None] = []
    if isinstance(data, bytes):  # each preceded by its length
        while data:
            end = 4 + int.from_bytes(data[:4], "little")
            parts.append(data[4:end])
            data = data[end:]
    else:
        parts = [decode_base64(str(text)) for text in data]
    return [(f"image {place}", part) for place, part in enumerate(parts, start=1)]


def respond(service: Service, asked: dict[str, Any], records: list[dict[str, Any]]) -> Response:
    """Return the response with the requested outputs, as JSON or binary."""
    values = {name: [record[name] for record in records] for name in FIELDS}
    values["score"] = [LOWEST if score is None else score for score in values["score"]]
    binary = asked.get("parameters", {}).get("binary_data_output", False)
    wanted = asked.get("outputs") or [{"name": name, "parameters": {"binary_data": binary}} for name in FIELDS]
    outputs, blobs = [], []
    for entry in wanted:
        name = entry.get("name")
        if name not in FIELDS:
            raise ApiError(422, f"unknown output {str(name)[:40]!r}; the outputs are {', '.join(FIELDS)}")
        kind, form = FIELDS[name]
        output = _tensor(name, kind, len(records))
        if entry.get("parameters", {}).get("binary_data", binary):
            blobs.append(np.array(values[name], form).tobytes())
            output["parameters"] = {"binary_data_size": len(blobs[-1])}
        else:
            output["data"] = values[name]
        outputs.append(output)
    answer = {"model_name": service.name, "model_version": "1", "id": asked.get("id", ""), "outputs": outputs}
    if not blobs:
        return JSONResponse(answer)
    head = json.dumps(answer).encode()
    content = head + b"".join(blobs)
    return Response(content, headers={LENGTH: str(len(head))}, media_type="application/octet-stream")

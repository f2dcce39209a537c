"""Request limits, error responses, request bodies, and the OpenAPI schemas."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from starlette.datastructures import Headers, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.responses import JSONResponse

from idness.core.errors import OptionError


@dataclass(frozen=True)
class Limits:
    """Limits on single requests and on all requests together.

    Connections, slow request heads and request rates are left to a reverse proxy.

    Args:
        body: bytes of a request body.
        pixels: pixels of one image.
        request_pixels: pixels of all images of a request; small files may decode to many.
        images: images per request.
        queue: images that wait or are being judged; more are rejected with 503.
        held: bytes of all request bodies in memory; more are rejected with 503.
        body_seconds: seconds for a request body to arrive.
        answer_seconds: seconds from the arrival of a request to its response.
        stop_seconds: seconds for accepted requests to be answered after SIGTERM.
    """

    body: int = 32_000_000
    pixels: int = 25_000_000
    request_pixels: int = 200_000_000
    images: int = 64
    queue: int = 512
    held: int = 512_000_000
    body_seconds: float = 20.0
    answer_seconds: float = 60.0
    stop_seconds: float = 60.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise OptionError(f"Limits: {field.name} must be above 0, got {value!r}")
        if self.images > self.queue:
            raise OptionError(f"Limits: images per request ({self.images}) must be at most queue ({self.queue})")


class ApiError(HTTPException):
    """An error response, with a one-line `error` and possibly more fields."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None, **more: Any) -> None:
        super().__init__(status, " ".join(message.split()), headers)
        self.more = more

    def __str__(self) -> str:
        return self.detail


def overloaded(what: str) -> ApiError:
    """Return the error for a client that should try again later."""
    return ApiError(503, f"the server is busy ({what}); try again in a second", {"Retry-After": "1"})


def error_response(error: HTTPException) -> JSONResponse:
    """Return an error as a JSON response."""
    more = error.more if isinstance(error, ApiError) else {}
    return JSONResponse({"error": str(error.detail), **more}, error.status_code, error.headers)


Upload = tuple[str, bytes | None]
"""The client's name for an image, which is never used as a path, and its bytes, or `None` if they are not valid base64."""


async def read_uploads(headers: Headers, body: bytes, limits: Limits) -> list[Upload]:
    """Return the images of a request body."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        found = await _from_form(headers, body, limits)
    elif kind == "application/json":
        found = _from_json(body, limits)
    elif kind.startswith("image/") or kind == "application/octet-stream":
        found = [("image", body)]
    else:
        raise ApiError(
            415, f"Content-Type must be multipart/form-data, application/json or image/*, got {kind[:60] or 'none'}"
        )
    if not found:
        raise ApiError(422, "the request contains no image; send one or more in the field 'images'")
    return found


async def _from_form(headers: Headers, body: bytes, limits: Limits) -> list[Upload]:
    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    parser = MultiPartParser(headers, stream(), max_files=limits.images, max_fields=8)
    parser.spool_max_size = 1 << 40  # request bodies are limited, so no part is written to disk
    try:
        form = await parser.parse()
        files = [part for _, part in form.multi_items() if isinstance(part, UploadFile)]
        found: list[Upload] = [(part.filename or f"image {i}", await part.read()) for i, part in enumerate(files, 1)]
    except MultiPartException as error:
        status = 413 if "Too many" in error.message else 400
        raise ApiError(status, f"invalid form: {error.message} At most {limits.images} images are accepted.") from error
    except Exception as error:  # malformed boundaries and headers raise many kinds of errors
        raise ApiError(400, "invalid form; send multipart/form-data with a boundary") from error
    finally:
        for file in parser._files_to_close_on_error:
            file.close()
    return found


def _from_json(body: bytes, limits: Limits) -> list[Upload]:
    wanted = 'the JSON must be {"images": ["BASE64", ...]} or {"image": "BASE64"}'
    try:
        data: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"{wanted}; it cannot be parsed") from error
    if not isinstance(data, dict) or not {"image", "images"} & set(data):
        raise ApiError(422, wanted)
    listed = data["images"] if "images" in data else [data["image"]]
    if not isinstance(listed, list) or not all(isinstance(text, str) for text in listed):
        raise ApiError(422, wanted)
    if len(listed) > limits.images:
        raise ApiError(413, f"a request may contain at most {limits.images} images, got {len(listed)}")
    return [(f"image {index}", decode_base64(text)) for index, text in enumerate(listed, start=1)]


def decode_base64(text: str) -> bytes | None:
    """Return the bytes of base64 text or a data URL; `None` if it is not base64."""
    content = text.partition(",")[2] if text.startswith("data:") else text  # browsers send data URLs
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        return None


def _object(fields: Mapping[str, tuple[Sequence[str], str]], **more: Any) -> dict[str, Any]:
    """Return the schema of an object, given type and description of each field."""
    known = {name: {"type": kind, "description": text} for name, (kind, text) in fields.items()}
    return {"type": "object", "properties": known | more}


RESULT = {
    "image": ("string", "The file name sent by the client."),
    "error": ("string", "What is wrong with the file, and what to do; such a result has no verdict fields."),
    "label": ("integer", "The network's class index; -1 if its output was not finite."),
    "class": ("string", "The name of the class."),
    "score": (["number", "null"], "ID-ness; higher is more in-distribution."),
    "p_value": ("number", "Fraction of in-distribution images that score as low or lower."),
    "is_ood": ("boolean", "Whether the image is flagged as out-of-distribution."),
    "reason": (["string", "null"], "Why the image was flagged without a score."),
    "caution": (["string", "null"], "What is suspicious about the image, although it was not flagged for this reason."),
    "first_frame_only": ("boolean", "Whether the file has more frames or pages, which were not judged."),
    "neighbours": ("array", "Nearest calibration images: index for /v1/calibration, cosine similarity, class, score."),
    "picture": (["string", "null"], "The image as the network saw it, as a data URL, if requested."),
}
ANSWER = _object(
    {"recall": ("number", "Fraction of in-distribution images that the threshold accepts.")},
    results={"type": "array", "items": _object(RESULT)},
)


def _images(form: str) -> dict[str, Any]:
    listed = {"type": "array", "items": {"type": "string", "format": form}}
    return {"schema": {"type": "object", "properties": {"images": listed}, "required": ["images"]}}


SCORE_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "One or more images: a form with files, JSON with base64, or the bytes of one image.",
        "content": {
            "multipart/form-data": _images("binary"),
            "application/json": _images("byte"),
            "image/*": {"schema": {"type": "string", "format": "binary"}},
        },
    }
}
"""The OpenAPI description of request bodies, which FastAPI cannot infer."""
RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/json": {"schema": ANSWER}}},
    400: {"description": "The body cannot be parsed."},
    401: {"description": "The API key is missing or wrong."},
    403: {"description": "The request comes from a page of another origin."},
    408: {"description": "The body did not arrive in time."},
    413: {"description": "Too many bytes, pixels or images."},
    415: {"description": "The content type is not supported."},
    422: {"description": "No image of the request could be judged; results contains the error of each."},
    503: {"description": "Too many images are waiting; try again after Retry-After seconds."},
    504: {"description": "The images could not be judged in time."},
}

"""Finds the images in a request's body: multipart, JSON with base64, or one image as it is."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from idness.serve.limits import Limits
from idness.serve.problems import Problem

KINDS = "multipart/form-data, application/json or image/*"


@dataclass(frozen=True)
class Upload:
    """Holds the bytes of one image and the name that its sender gave it; the name is only ever said back.

    Args:
        name: the name.
        content: the bytes; none where what was sent does not spell any.
    """

    name: str
    content: bytes | None


class _InMemory(MultiPartParser):
    """Keeps parts in memory, which the body's limit bounds: nothing from a request touches the disk."""

    spool_max_size = 1 << 40

    cut = False
    """Whether a part has begun that has not ended; the form lacks it, without a word from the parser."""

    def on_part_begin(self) -> None:
        self.cut = True
        super().on_part_begin()

    def on_part_end(self) -> None:
        self.cut = False
        super().on_part_end()

    def close(self) -> None:
        """Let go of all files, those that did not end too."""
        for file in self._files_to_close_on_error:
            file.close()


async def read_uploads(request: Request, limits: Limits) -> list[Upload]:
    """Read the images of a request."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        found = await _from_form(request, limits)
    elif kind == "application/json":
        found = _from_json(await request.body(), limits)
    elif kind.startswith("image/") or kind == "application/octet-stream":
        found = [Upload("image", await request.body())]
    else:
        raise Problem(415, f"the content type must be {KINDS}, got {kind[:60] or 'none'}")
    if not found:
        raise Problem(422, "the request holds no image; send one or more as the field 'images'")
    return found


async def _from_form(request: Request, limits: Limits) -> list[Upload]:
    # The parser counts fields and files apart; nothing but files is expected.
    parser = _InMemory(request.headers, request.stream(), max_files=limits.images, max_fields=8)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        status = 413 if "Too many" in error.message else 400
        raise Problem(
            status, f"the form cannot be used: {error.message} At most {limits.images} images are taken."
        ) from error
    except Exception as error:  # boundaries and headers of a hostile form fail in many ways
        parser.close()
        raise Problem(400, "the form cannot be read; is it multipart/form-data with a boundary?") from error
    try:
        files = [part for _, part in form.multi_items() if isinstance(part, UploadFile)]
        if parser.cut:
            raise Problem(400, "the form ends within a part, so that an image may be lost; send it whole")
        return [
            Upload(part.filename or f"image {index}", await part.read()) for index, part in enumerate(files, start=1)
        ]
    finally:
        parser.close()


def _from_json(body: bytes, limits: Limits) -> list[Upload]:
    wanted = 'the JSON must be {"images": ["BASE64", ...]} or {"image": "BASE64"}'
    try:
        data: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Problem(400, f"{wanted}; it cannot be read") from error
    if not isinstance(data, dict) or not {"image", "images"} & set(data):
        raise Problem(422, wanted)
    listed = data["images"] if "images" in data else [data["image"]]
    if not isinstance(listed, list) or not all(isinstance(text, str) for text in listed):
        raise Problem(422, wanted)
    if len(listed) > limits.images:
        raise Problem(413, f"a request may hold at most {limits.images} images, got {len(listed)}")
    return [Upload(f"image {index}", _decoded(text)) for index, text in enumerate(listed, start=1)]


def _decoded(text: str) -> bytes | None:
    # A data URL, as browsers make them, is base64 after its comma.
    content = text.partition(",")[2] if text.startswith("data:") else text
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        return None

"""The shapes of questions and answers, as the OpenAPI page shows them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Neighbour(BaseModel):
    """Describes one of the nearest calibration images."""

    index: int = Field(description="Number of the image, for /v1/calibration/{index}.")
    similarity: float = Field(description="Cosine of the two images' features.")
    class_: str = Field(alias="class", description="The network's class for it.")
    score: float

    model_config = ConfigDict(populate_by_name=True)


class Result(BaseModel):
    """Gives the verdict on one image."""

    name: str = Field(description="The file name that was sent.")
    label: int = Field(description="The plain network's class; -1 where its output was not finite.")
    class_: str = Field(alias="class")
    score: float | None = Field(description="ID-ness; higher is more in-distribution.")
    p_value: float = Field(description="Share of in-distribution images that score no higher.")
    is_ood: bool = Field(description="Whether the image is called out-of-distribution.")
    reason: str | None = Field(None, description="Why the image was rejected without a score.")
    caution: str | None = Field(None, description="What is odd about an image that is not rejected for it.")
    first_frame_only: bool = Field(
        False, description="Whether the image has more frames or pages, which were not judged."
    )
    neighbours: list[Neighbour] = []
    picture: str | None = Field(None, description="The image as the network saw it, a data URL, where asked for.")

    model_config = ConfigDict(populate_by_name=True)


class NotJudged(BaseModel):
    """Says why there is no verdict on one image; the fields of a verdict are absent, so that none is read by mistake."""

    name: str = Field(description="The file name that was sent.")
    problem: str = Field(description="What is wrong with the file, and what to do.")


class ScoreAnswer(BaseModel):
    """Answers for all images of a request, in their order."""

    recall: float = Field(description="Share of in-distribution images that the threshold keeps.")
    results: list[Result | NotJudged]


class GuardInfo(BaseModel):
    """Describes the guard."""

    network: str
    method: str
    recalls: list[float]
    thresholds: dict[str, list[float]]
    classes: list[str] | None
    calibration_images: int
    per_class: bool
    promise: str
    gallery: int = Field(description="Number of calibration images that can be shown.")
    max_images: int
    max_bytes: int
    max_pixels: int
    max_request_pixels: int


class CalibrationInfo(BaseModel):
    """Describes calibration scores."""

    images: int
    low: float
    high: float
    counts: list[int] = Field(description="Images in equal steps from low to high.")
    quantiles: list[float] = Field(description="Scores at evenly spaced ranks, rising.")


class SampleInfo(BaseModel):
    """Describes an embedded picture."""

    index: int
    title: str
    role: str


class State(BaseModel):
    """Says whether the service lives, or is ready."""

    status: str


SCORE_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "One or many images: a form with files, JSON with base64, or one image as it is.",
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {"images": {"type": "array", "items": {"type": "string", "format": "binary"}}},
                    "required": ["images"],
                }
            },
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {"images": {"type": "array", "items": {"type": "string", "format": "byte"}}},
                    "required": ["images"],
                }
            },
            "image/*": {"schema": {"type": "string", "format": "binary"}},
        },
    },
    "responses": {
        code: {
            "description": text,
            "content": {
                "application/json": {"schema": {"type": "object", "properties": {"error": {"type": "string"}}}}
            },
        }
        for code, text in {
            "400": "The body cannot be read.",
            "401": "The API key is missing or wrong.",
            "408": "The body came too slowly.",
            "413": "Too many bytes or images.",
            "415": "The content type is not taken.",
            "422": "No image of the request can be judged; results says why, image by image.",
            "503": "Too many images wait; Retry-After says when to come again.",
            "504": "The answer took too long.",
        }.items()
    },
}
"""What FastAPI cannot see by itself: the bodies that are taken, and the answers other than 200."""

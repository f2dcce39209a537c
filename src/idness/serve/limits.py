"""How much a client may ask for, and how long anything may take."""

from __future__ import annotations

from dataclasses import dataclass, fields

from idness.core.errors import OptionError


@dataclass(frozen=True)
class Limits:
    """Bounds what one request and all requests together may use.

    Args:
        body: bytes of a request's body.
        pixels: pixels of one image.
        request_pixels: pixels of all images of a request together: small files may unpack to many.
        images: images in one request.
        queue: images that wait or are worked on; more are turned away.
        requests: requests that are read at once, and as many that are worked on. Where more come, the slowest of those that are read
            has to go; where all of them are worked on, new ones are turned away.
        held: bytes of all bodies that are read or worked on; more are turned away.
        connections: open connections; more are turned away.
        head_seconds: time for a request's head to arrive.
        body_seconds: time for its body to arrive.
        answer_seconds: time until its answer, once it has arrived.
        stop_seconds: time for accepted requests to be answered after the signal to stop.
    """

    body: int = 32_000_000
    pixels: int = 25_000_000
    request_pixels: int = 200_000_000
    images: int = 64
    queue: int = 512
    requests: int = 128
    held: int = 512_000_000
    connections: int = 1_024
    head_seconds: float = 10.0
    body_seconds: float = 20.0
    answer_seconds: float = 60.0
    stop_seconds: float = 60.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise OptionError(f"Limits: {field.name} must be above 0, got {value!r}")
        if self.images > self.queue:
            raise OptionError(f"Limits: images per request ({self.images}) must fit the queue ({self.queue})")

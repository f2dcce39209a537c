"""Makes small copies of pictures, for people to look at."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from idness.data.sets import Picture

SIDE = 64
"""The longest side of a thumbnail, in pixels."""


def thumbnail(picture: Picture, side: int = SIDE) -> Image.Image:
    """Copy a picture as RGB, shrunk where a side is longer than `side`; of many channels the first three, or the first, are shown."""
    if isinstance(picture, np.ndarray) and picture.shape[2] != 3:
        picture = np.ascontiguousarray(picture[:, :, :3] if picture.shape[2] > 3 else picture[:, :, 0])
    small = (Image.fromarray(picture) if isinstance(picture, np.ndarray) else picture).convert("RGB")
    small.thumbnail((side, side))
    return small


def encoded(picture: Picture, side: int = SIDE) -> tuple[bytes, str]:
    """Give the bytes of a small copy and their media type: PNG where the picture is that small already, else WebP."""
    small, buffer = thumbnail(picture, side), io.BytesIO()
    if max(picture.shape if isinstance(picture, np.ndarray) else picture.size) <= side:
        small.save(buffer, "PNG", optimize=True)
        return buffer.getvalue(), "image/png"
    small.save(buffer, "WEBP", quality=80)
    return buffer.getvalue(), "image/webp"

"""Makes small copies of pictures, for people to look at."""

from __future__ import annotations

import numpy as np
from PIL import Image

from idness.data.sets import Picture

SIDE = 64
"""The longest side of a thumbnail, in pixels."""


def thumbnail(picture: Picture, side: int = SIDE) -> Image.Image:
    """Copy a picture as RGB, shrunk where a side is longer than `side`."""
    small = (Image.fromarray(picture) if isinstance(picture, np.ndarray) else picture).convert("RGB")
    small.thumbnail((side, side))
    return small

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from idness.data.preprocess import thumbnail


@pytest.mark.parametrize(
    ("size", "expected"), [((200, 100), (64, 32)), ((100, 200), (32, 64)), ((64, 64), (64, 64)), ((5, 3), (5, 3))]
)
@pytest.mark.parametrize("kind", ["picture", "array", "grey"])
def test_a_copy_is_small_and_rgb(size: tuple[int, int], expected: tuple[int, int], kind: str) -> None:
    given = Image.new("L" if kind == "grey" else "RGB", size, 77)
    small = thumbnail(np.array(given) if kind == "array" else given)
    assert (small.size, small.mode) == (expected, "RGB")
    assert given.size == size  # the picture itself is as it was
    small.putpixel((0, 0), (1, 2, 3))
    assert given.getpixel((0, 0)) != (1, 2, 3)


def test_the_longest_side_can_be_chosen() -> None:
    assert thumbnail(Image.new("RGB", (40, 20)), 10).size == (10, 5)

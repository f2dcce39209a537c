"""Knows images again: the same pixels by their hash, and nearly the same ones (another size, format, a little noise) by their look."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idness.core.errors import DataError
from idness.data.sets import ImageSet, Picture

EXACT, LOOK = 16, 8
"""Bytes of the hash of an image's pixels, and of the one of its look."""
DIGEST = EXACT + LOOK
NEAR = 8
"""Bits of 64 in which the looks of two images may differ to be compared closely."""
STRUCTURE = 8
"""Bits that must be of each kind: the look of a plain picture says nothing."""
PAIRS, BLOCK = 400_000_000, 128
"""Looks that are compared at most, of larger sets evenly picked ones, and how many rows at a time."""
Places = NDArray[np.int64]
COMPARED = 400
"""Pairs of two sets that are compared closely at most; there is no need to count further."""
SIDE = 16
CORRELATION, DIFFERENCE = 0.95, 24.0
"""How much two images must have in common at 16 x 16 pixels, in grey values of 0 to 255."""


def digest(picture: Picture) -> bytes:
    """Hash an image's pixels, so that it is known again in another format, and behind that its look."""
    return exact(picture) + look(picture)


def exact(picture: Picture) -> bytes:
    """Hash an image's pixels."""
    array = np.asarray(picture)
    return hashlib.sha256(repr(array.shape).encode() + array.tobytes()).digest()[:EXACT]


def exact_digests(images: ImageSet, most: int) -> NDArray[np.uint8]:
    """Hash the pixels of at most so many images, picked from all over a set; those that cannot be read are left out."""
    places = _spread(images, most)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1) if images.parallel else 1) as pool:
        return stacked(found for found in pool.map(partial(_exact_of, images), places) if found)


def stacked(digests: Iterable[bytes]) -> NDArray[np.uint8]:
    """Put the hashes of pixels below each other."""
    return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, EXACT)


def _exact_of(images: ImageSet, place: int) -> bytes:
    try:
        return exact(images.picture(place))
    except DataError:
        return b""


def _spread(images: ImageSet, most: int) -> list[int]:
    """Pick places evenly, or whole blocks of a set that is read in blocks."""
    step, blocks = max(1, -(-len(images) // most)), images.blocks()
    if blocks is None:
        return list(range(0, len(images), step))
    return [place for start, stop in list(pairwise(blocks))[::step] for place in range(start, stop)][:most]


def look(picture: Picture) -> bytes:
    """Say in 64 bits where a picture, made small and grey, grows lighter from left to right."""
    small = grey(picture, 9, 8)
    return np.packbits(small[:, 1:] > small[:, :-1]).tobytes()


def grey(picture: Picture, width: int, height: int) -> NDArray[np.float32]:
    """Make a picture small and grey."""
    if isinstance(picture, np.ndarray) and picture.ndim == 3 and picture.shape[2] == 3:
        picture = Image.fromarray(picture)
    if isinstance(picture, np.ndarray):
        channels = picture.reshape(*picture.shape[:2], -1).astype(np.float32).mean(axis=2)
        image = Image.fromarray(channels.round().astype(np.uint8))
    else:
        image = picture.convert("L")
    return np.asarray(image.resize((width, height), Image.Resampling.BOX), dtype=np.float32)


def common(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> int:
    """Count the images of two sets that have the same pixels, by their digests."""
    if min(first.shape[1], second.shape[1]) < EXACT:
        return 0
    return len({row[:EXACT].tobytes() for row in first} & {row[:EXACT].tobytes() for row in second})


def candidates(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> list[tuple[int, int]]:
    """Find rows of two sets whose looks are nearly the same and whose pixels are not, the most alike first."""
    if min(first.shape[1], second.shape[1]) < DIGEST or not len(first) or not len(second):
        return []
    ones, others = (np.ascontiguousarray(part[:, EXACT:DIGEST]).view(np.uint64).ravel() for part in (first, second))
    rows = np.flatnonzero(_structured(ones))
    rows = rows[:: max(1, -(-len(rows) * len(others) // PAIRS))]
    found: list[tuple[int, int, int]] = []
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        apart = _bits(ones[block, None] ^ others[None, :])
        found += [(int(apart[row, other]), int(block[row]), int(other)) for row, other in np.argwhere(apart <= NEAR)]
        if len(found) > 100 * COMPARED:
            break  # sets of one plain kind, such as digits on black, which only the pictures tell apart
    return [(a, b) for _, a, b in sorted(found) if first[a, :EXACT].tobytes() != second[b, :EXACT].tobytes()]


def near(
    first: NDArray[np.uint8],
    second: NDArray[np.uint8],
    pictures: tuple[ImageSet, ImageSet],
    places: tuple[Places, Places],
) -> int:
    """Count the images of one set of which a near copy is in another; the pictures themselves are compared.

    Args:
        first: digests of one set.
        second: digests of the other.
        pictures: the two sets.
        places: where the images of each row are in their set.
    """
    found: set[int] = set()
    for row, other in candidates(first, second)[:COMPARED]:
        if row not in found:
            one = grey(pictures[0].picture(int(places[0][row])), SIDE, SIDE)
            two = grey(pictures[1].picture(int(places[1][other])), SIDE, SIDE)
            found |= {row} if same_look(one, two) else set()
    return len(found)


def same_look(one: NDArray[np.float32], two: NDArray[np.float32]) -> bool:
    """Say whether two small grey pictures are of one image."""
    spread = float(one.std() * two.std())
    if spread < 1.0 or float(np.abs(one - two).mean()) > DIFFERENCE:
        return False
    return float(((one - one.mean()) * (two - two.mean())).mean()) / spread >= CORRELATION


def _structured(looks: NDArray[np.uint64]) -> NDArray[np.bool_]:
    bits = _bits(looks)
    return (bits >= STRUCTURE) & (bits <= 8 * LOOK - STRUCTURE)


def _bits(values: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Count the bits that are set."""
    parts = np.ascontiguousarray(values)[..., None].view(np.uint16)
    counts: NDArray[np.int64] = _COUNTS[parts].sum(axis=-1)
    return counts


_COUNTS = np.unpackbits(np.arange(65536, dtype=np.uint16).view(np.uint8)).reshape(65536, 16).sum(axis=1)

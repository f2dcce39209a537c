"""Duplicates by a hash of the pixels; near-duplicates (resized, other format, slight noise) by a perceptual hash."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idness.core.errors import DataError
from idness.data.sets import ImageSet, Picture, as_image

EXACT, LOOK = 16, 8
"""Bytes of the hash of an image's pixels, and of its perceptual hash."""
DIGEST = EXACT + LOOK
NEAR = 8
"""Number of the 64 bits in which the perceptual hashes of near-duplicates may differ."""
STRUCTURE = 8
"""Minimum number of 0 bits and of 1 bits, because the perceptual hash of a plain image carries no information."""
PAIRS = 400_000_000
"""Maximum number of pairs of hashes that are compared; larger sets are sampled at even spacing."""
BLOCK = 65_536
"""Number of pairs of hashes that are compared at a time."""
Places = NDArray[np.int64]
COMPARED = 400
"""Maximum number of pairs of images that are compared pixel by pixel."""
SIDE = 16
CORRELATION, DIFFERENCE = 0.95, 24.0
"""Minimum correlation and maximum mean difference (grey values 0 to 255) of near-duplicates at 16 x 16 pixels."""


def digest(picture: Picture) -> bytes:
    """Return the hash of an image's pixels followed by its perceptual hash.

    The latter has 64 bits, set where the image, shrunk and converted to grey, gets lighter from left to right.
    """
    return exact(picture) + _lighter(_shrunk(picture, 9, 8))


def digests(pictures: Iterable[Picture]) -> Iterator[bytes]:
    """Yield the digest of each image; RGB arrays of equal size are shrunk together, which is several times faster."""
    for shape, group in groupby(pictures, lambda picture: picture.shape if isinstance(picture, np.ndarray) else None):
        if shape is None or shape[2] != 3 or shape[0] > shape[1]:  # Pillow shrinks the height of tall images first
            yield from map(digest, group)
            continue
        arrays = [np.asarray(picture) for picture in group]
        tall = Image.fromarray(np.concatenate(arrays)).convert("L")
        narrow = tall.resize((9, tall.height), Image.Resampling.BOX)
        bits = _lighter(narrow.resize((9, LOOK * len(arrays)), Image.Resampling.BOX))
        yield from (exact(array) + bits[LOOK * place :][:LOOK] for place, array in enumerate(arrays))


def _lighter(small: Image.Image) -> bytes:
    grey = np.asarray(small)
    return np.packbits(grey[:, 1:] > grey[:, :-1]).tobytes()


def exact(picture: Picture) -> bytes:
    """Return the hash of an image's pixels."""
    array = np.asarray(picture)
    found = hashlib.sha256(repr(array.shape).encode())
    found.update(np.ascontiguousarray(array).data)
    return found.digest()[:EXACT]


def exact_digests(images: ImageSet, most: int) -> NDArray[np.uint8]:
    """Return the pixel hashes of at most `most` images, evenly spaced over a set; unreadable ones are omitted."""

    def hashed(place: int) -> bytes:
        try:
            return exact(images.picture(place))
        except DataError:
            return b""

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1) if images.parallel else 1) as pool:
        return stacked(pool.map(hashed, range(0, len(images), max(1, -(-len(images) // most)))))


def stacked(digests: Iterable[bytes]) -> NDArray[np.uint8]:
    """Return pixel hashes as the rows of an array."""
    return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, EXACT)


def _shrunk(picture: Picture, width: int, height: int) -> Image.Image:
    return as_image(picture).convert("L").resize((width, height), Image.Resampling.BOX)


def common(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> int:
    """Return the number of images that two sets have in common, given their digests."""
    return len(set(_hashes(first)) & set(_hashes(second)))


def _hashes(digests: NDArray[np.uint8]) -> list[bytes]:
    """Return the pixel hashes of digests, as bytes."""
    parts: list[bytes] = np.ascontiguousarray(digests[:, :EXACT]).view(f"V{EXACT}").ravel().tolist()
    return parts


def candidates(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> list[tuple[int, int]]:
    """Return pairs of rows of two sets with similar perceptual hashes and different pixels, the most similar first."""
    if min(first.shape[1], second.shape[1]) < DIGEST or not len(first) or not len(second):
        return []
    ones, others = (np.ascontiguousarray(part[:, EXACT:DIGEST]).view(np.uint64).ravel() for part in (first, second))
    bits = np.bitwise_count(ones)
    rows = np.flatnonzero((bits >= STRUCTURE) & (bits <= 8 * LOOK - STRUCTURE))
    rows = rows[:: max(1, -(-len(rows) * len(others) // PAIRS))]
    found: list[tuple[int, int, int]] = []
    for block in np.array_split(rows, -(-len(rows) * len(others) // BLOCK) or 1):
        apart = np.bitwise_count(ones[block, None] ^ others)
        at = np.unravel_index(np.flatnonzero(apart <= NEAR), apart.shape)  # np.nonzero takes ten times as long
        found += zip(apart[at].tolist(), block[at[0]].tolist(), at[1].tolist(), strict=True)
        if len(found) > 100 * COMPARED:
            break  # all images look alike, such as digits on black
    return [(a, b) for _, a, b in sorted(found) if first[a, :EXACT].tobytes() != second[b, :EXACT].tobytes()]


def near(
    first: NDArray[np.uint8], second: NDArray[np.uint8], sets: tuple[ImageSet, ImageSet], places: tuple[Places, Places]
) -> int:
    """Return the number of images of one set with a near-duplicate in another or the same set; candidates are read and compared.

    `first` and `second` are the digests of the two `sets`, and `places` are the position of each row in its set.
    """
    pairs = candidates(first, second)[:COMPARED]
    small: list[dict[int, NDArray[np.float32]]] = []
    for images, known, column in zip(sets, places, zip(*pairs, strict=True) if pairs else ((), ()), strict=True):
        rows = sorted(set(column), key=lambda row: known[row])  # so that each block of a table is read once
        read = ((row, images.picture(int(known[row]))) for row in rows)
        small.append({row: np.asarray(_shrunk(picture, SIDE, SIDE), np.float32) for row, picture in read})
    return len({row for row, other in pairs if same_look(small[0][row], small[1][other])})


def within(digests: NDArray[np.uint8], images: ImageSet, places: Places) -> tuple[int, int]:
    """Return how many images of a set duplicate an earlier one, and how many have a near-duplicate in the same set."""
    return len(digests) - len(set(_hashes(digests))), near(digests, digests, (images, images), (places, places))


def same_look(one: NDArray[np.float32], two: NDArray[np.float32]) -> bool:
    """Whether two small grey images are near-duplicates."""
    spread = float(one.std() * two.std())
    if spread < 1.0 or float(np.abs(one - two).mean()) > DIFFERENCE:
        return False
    return float(((one - one.mean()) * (two - two.mean())).mean()) / spread >= CORRELATION

"""Decoding of untrusted images: bounded in size, limited to known formats, never silently wrong."""

from __future__ import annotations

import importlib
import io
import os
import sys
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from idness.core.errors import DataError
from idness.core.wording import readable
from idness.data.urls import UrlPath

T = TypeVar("T")
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
"""The formats that are decoded; all others are refused."""
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})
"""Suffixes of image files."""
MAX_PIXELS = 64_000_000
"""The most pixels an image may have: 8000 x 8000, which decodes to 192 MB."""
TEXT = frozenset(b"\t\n\r\f") | frozenset(range(32, 127))
"""The bytes of plain text."""
SIXTEEN_BIT = frozenset({"I;16", "I;16L", "I;16B", "I;16N"})


def decode(source: bytes | str | os.PathLike[str], *, max_pixels: int = MAX_PIXELS, name: str = "image") -> Image.Image:
    """Decode the first frame of an image to 8-bit RGB, upright, transparent parts on white.

    16-bit images keep their upper 8 bits; floating-point and 32-bit images are refused, since their value of white is unknown.

    Args:
        source: the file's bytes, or its path.
        max_pixels: larger images are refused before any pixel is decoded.
        name: the name of bytes in messages.

    Raises:
        DataError: if the image cannot be decoded.
    """
    return _decoded(source, max_pixels, name, _to_rgb)


def decode_picture(
    source: bytes | str | os.PathLike[str], *, max_pixels: int = MAX_PIXELS, name: str = "image"
) -> Image.Image | NDArray[np.uint8]:
    """Decode an image to exactly what `decode` returns, as an array (height, width, 3) if that is faster.

    Plain JPEGs are decoded by simplejpeg if it is installed and torch is imported, which takes arrays.
    """
    return _decoded(source, max_pixels, name, _to_array)


def _decoded(
    source: bytes | str | os.PathLike[str], max_pixels: int, name: str, unpack: Callable[[str, Image.Image, bytes], T]
) -> T:
    """Decode untrusted bytes; any error becomes a DataError of one line."""
    name, data = (name, source) if isinstance(source, bytes) else (readable(Path(source).name), contents(Path(source)))
    if not data:
        raise DataError(f"{name}: is an empty file; an image is expected")
    try:
        # Pillow's own size warning says nothing that the check below does not; as an error it is caught like one.
        with _opened(data) as image:
            _check_size(name, image, max_pixels)
            return unpack(name, image, data)
    except DataError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataError(f"{name}: must have at most {max_pixels:,} pixels, got far more; make it smaller") from error
    except UnidentifiedImageError as error:
        raise DataError(f"{name}: must be one of {', '.join(FORMATS)}, got {_kind(data)}") from error
    except MemoryError as error:
        raise DataError(f"{name}: does not fit in memory; make it smaller") from error
    except Exception as error:  # a hostile file may raise anything inside a decoder
        harm = "is cut off: its end is missing" if "truncated" in str(error).lower() else "is damaged"
        raise DataError(f"{name}: {harm}; save or send it again") from error


def pixels_of(data: bytes) -> int:
    """Return the number of pixels by an image's header alone; 0 if it is not an image."""
    try:
        with _opened(data) as image:
            return image.width * image.height
    except Exception:  # decoding it reports what is wrong
        return 0


def is_animated(data: bytes) -> bool:
    """Whether an image has frames or pages beyond the first."""
    try:
        with _opened(data) as image:
            return bool(getattr(image, "is_animated", False))
    except Exception:  # the first frame was fine
        return False


def _opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data), formats=FORMATS)


def contents(path: Path | UrlPath) -> bytes:
    """Return a file's bytes; errors name the file."""
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:  # a ValueError if the name holds a NUL character
        why = getattr(error, "strerror", None) or error
        raise DataError(f"{readable(path.name)}: cannot be read ({why})") from error


def _check_size(name: str, image: Image.Image, max_pixels: int) -> None:
    width, height = image.size
    if width * height > max_pixels:
        raise DataError(f"{name}: must have at most {max_pixels:,} pixels, got {width} x {height}; make it smaller")
    if width < 1 or height < 1:
        raise DataError(f"{name}: must have at least one pixel, got {width} x {height}")


def _to_array(name: str, image: Image.Image, data: bytes) -> Image.Image | NDArray[np.uint8]:
    unpacker = _unpacker() if sys.modules.get("torch") is not None else None
    if unpacker is not None and image.format == "JPEG" and image.mode == "RGB" and _orientation(image) == 1:
        try:
            found: NDArray[np.uint8] = unpacker.decode_jpeg(data, "RGB")
            return found
        except Exception:  # it is stricter than Pillow about slight damage
            pass
    return _to_rgb(name, image, data)


@cache
def _unpacker() -> Any:
    """Return simplejpeg, if it is installed."""
    try:
        return importlib.import_module("simplejpeg")
    except ImportError:
        return None


def _to_rgb(name: str, image: Image.Image, data: bytes) -> Image.Image:
    if image.mode == "F" or (image.mode == "I" and image.format != "PPM"):
        kind = "floating-point" if image.mode == "F" else "32-bit"
        raise DataError(
            f"{name}: must have 8 or 16 bits per channel, got a {kind} image; convert it so that white is 255 or 65535"
        )
    image.load()
    if image.mode in SIXTEEN_BIT or image.mode == "I":
        values = np.asarray(image).astype(np.int64)
        upright: Image.Image = Image.fromarray(np.clip(values >> 8, 0, 255).astype(np.uint8))
    else:
        upright = image
    upright = _upright(image, upright)
    if upright.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        layered = upright.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layered.size, "white"), layered).convert("RGB")
    return upright if upright.mode == "RGB" else upright.convert("RGB")  # which would copy it


def _upright(tagged: Image.Image, image: Image.Image) -> Image.Image:
    """Rotate an image as its EXIF orientation says."""
    orientation = _orientation(tagged)
    if orientation == 1:
        return image
    if image is tagged:
        return ImageOps.exif_transpose(image)
    image.getexif()[0x0112] = orientation
    return ImageOps.exif_transpose(image)


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation; 1 (upright) if it cannot be read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return int(image.getexif().get(0x0112, 1))
    except Exception:  # damaged tags in an intact image
        return 1


def _kind(data: bytes) -> str:
    """Describe a file that is not an image of a known format."""
    start = data[:1024].lstrip().lower()
    if start.startswith(b"<svg") or b"<svg" in start:
        return "an SVG drawing; save it as PNG"
    if start.startswith((b"<!doctype html", b"<html")):
        return "a web page"
    if start.startswith(b"%pdf"):
        return "a PDF; save its image as PNG"
    if b"ftypheic" in start or b"ftypavif" in start or b"ftypmif1" in start:
        return "a HEIC or AVIF image; save it as JPEG"
    known = sum(byte in TEXT for byte in start)
    return "text" if start and known == len(start) else "something else"

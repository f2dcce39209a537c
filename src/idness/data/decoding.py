"""Decodes images of unknown origin: bounded in size, limited to known formats, and never silently wrong."""

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
"""The formats that are decoded; every other one is refused unread."""
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})
"""How the names of image files end."""
MAX_PIXELS = 64_000_000
"""The most pixels an image may have: 8000 x 8000, which decodes to 192 MB."""
TEXT = frozenset(b"\t\n\r\f") | frozenset(range(32, 127))
"""The bytes of plain text."""
SIXTEEN_BIT = frozenset({"I;16", "I;16L", "I;16B", "I;16N"})


def decode(source: bytes | str | os.PathLike[str], *, max_pixels: int = MAX_PIXELS, name: str = "image") -> Image.Image:
    """Decode an image to 8-bit RGB, upright, its first frame, transparent parts on white.

    16-bit grey images keep their upper 8 bits, as 16-bit colour images do; floating-point and 32-bit images are refused, since
    nothing says which value is white.

    Args:
        source: the file's bytes, or its path.
        max_pixels: images with more are refused before any pixel is decoded.
        name: what messages call bytes.
    """
    return _decoded(source, max_pixels, name, _to_rgb)


def decode_picture(
    source: bytes | str | os.PathLike[str], *, max_pixels: int = MAX_PIXELS, name: str = "image"
) -> Image.Image | NDArray[np.uint8]:
    """Decode an image to what `decode` gives, bit by bit, as an array (height, width, 3) where that takes less time.

    A plain JPEG is unpacked by simplejpeg, where that is installed and torch is in use, which goes on with an array at once.
    """
    return _decoded(source, max_pixels, name, _to_array)


def _decoded(
    source: bytes | str | os.PathLike[str], max_pixels: int, name: str, unpack: Callable[[str, Image.Image, bytes], T]
) -> T:
    """Unpack an image that may be anything, and say in one line what is wrong with it."""
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
        # What Pillow says of it is about bytes and chunks, and no help to who sent the picture.
        harm = "is cut off: its end is missing" if "truncated" in str(error).lower() else "is damaged"
        raise DataError(f"{name}: {harm}; save or send it again") from error


def pixels_of(data: bytes) -> int:
    """Read from an image's head how many pixels it has, without unpacking any; 0 of what is no image."""
    try:
        with _opened(data) as image:
            return image.width * image.height
    except Exception:  # what is wrong with it, a bomb among them, is told where it is decoded
        return 0


def is_animated(data: bytes) -> bool:
    """Tell whether an image that `decode` takes has frames or pages beyond the first."""
    try:
        with _opened(data) as image:
            return bool(getattr(image, "is_animated", False))
    except Exception:  # the first frame was fine; what follows it is not there
        return False


def _opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data), formats=FORMATS)


def contents(path: Path | UrlPath) -> bytes:
    """Read a file's bytes; one that cannot be read is told by its name."""
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
        except Exception:  # it is stricter with slight damage than Pillow is, and Pillow's word counts
            pass
    return _to_rgb(name, image, data)


@cache
def _unpacker() -> Any:
    """Find the JPEG decoder that writes arrays, if there is one."""
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
    """Turn an image as its camera tag says."""
    orientation = _orientation(tagged)
    if orientation == 1:
        return image
    if image is tagged:
        return ImageOps.exif_transpose(image)
    image.getexif()[0x0112] = orientation
    return ImageOps.exif_transpose(image)


def _orientation(image: Image.Image) -> int:
    """Read the camera tag that says how an image is turned; 1 is upright, and a tag that cannot be read turns nothing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return int(image.getexif().get(0x0112, 1))
    except Exception:  # the picture is fine, only its tags are not
        return 1


def _kind(data: bytes) -> str:
    """Say in plain words what a file is that is no image of ours."""
    start = data[:1024].lstrip().lower()
    if start.startswith(b"<svg") or b"<svg" in start:
        return "an SVG drawing; save it as PNG"
    if start.startswith((b"<!doctype html", b"<html")):
        return "a web page"
    if start.startswith(b"%pdf"):
        return "a PDF; save its picture as PNG"
    if b"ftypheic" in start or b"ftypavif" in start or b"ftypmif1" in start:
        return "a HEIC or AVIF picture; save it as JPEG"
    known = sum(byte in TEXT for byte in start)
    return "text" if start and known == len(start) else "something else"

"""Decoding of untrusted images: of limited size and known formats only, and never silently wrong."""

from __future__ import annotations

import io
import os
import sys
import warnings
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError, features

from idness.core.errors import DataError
from idness.core.text import readable
from idness.data.urls import explained, name_of

try:
    import simplejpeg
except ImportError:
    simplejpeg = None

if TYPE_CHECKING:
    from idness.data.urls import Place

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "AVIF")
"""The formats that are decoded; all others are rejected."""
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".avif"})
"""Suffixes of image files."""
MAX_PIXELS = 64_000_000
"""Maximum number of pixels of an image: 8000 x 8000, which decode to 192 MB."""


def decode(source: bytes | str | os.PathLike[str], *, max_pixels: int = MAX_PIXELS, name: str = "image") -> Image.Image:
    """Decode the first frame of an image, given by path or as bytes, to 8-bit RGB, upright, with transparent parts on white.

    16-bit images keep their upper 8 bits. Floating-point and 32-bit images are rejected, since their white level is unknown; images of
    more than `max_pixels` are rejected before any pixel is decoded. `name` is what messages call an image given as bytes.
    """
    return cast("Image.Image", decode_picture(source, max_pixels=max_pixels, name=name, arrays=False))


def decode_picture(
    source: bytes | str | os.PathLike[str], *, max_pixels: int = MAX_PIXELS, name: str = "image", arrays: bool = True
) -> Image.Image | NDArray[np.uint8]:
    """Decode an image as `decode` does, with exactly the same pixels, to an array (height, width, 3) if that is faster.

    Plain JPEGs are decoded by simplejpeg if it is installed and torch is imported, which accepts arrays.
    """
    name, data = (name, source) if isinstance(source, bytes) else (readable(Path(source).name), contents(Path(source)))
    if not data:
        raise DataError(f"{name}: is an empty file; pass an image")
    try:
        with _opened(data) as image:
            width, height = image.size
            if width * height > max_pixels:
                raise DataError(f"{name}: must have at most {max_pixels:,} pixels, got {width} x {height}; resize it")
            found = _jpeg(image, data) if arrays and sys.modules.get("torch") is not None else None
            return to_rgb(name, image) if found is None else found
    except DataError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataError(f"{name}: must have at most {max_pixels:,} pixels, got far more; resize it") from error
    except UnidentifiedImageError as error:
        raise DataError(f"{name}: must be one of {', '.join(FORMATS)}, got something else") from error
    except Exception as error:  # a hostile file may raise anything inside a decoder
        harm = "is truncated (its end is missing)" if "truncated" in str(error).lower() else "is damaged"
        raise DataError(f"{name}: {harm}; save or send it again") from error


def decoder_version() -> str:
    """Return the libraries that decode images, with their versions, since decoders differ in the pixels of a JPEG."""
    jpeg = "libjpeg_turbo" if features.check_feature("libjpeg_turbo") else "jpg"
    found = [("Pillow", PIL.__version__), (jpeg.replace("_", "-"), features.version(jpeg))]
    if simplejpeg is not None:
        found.append(("simplejpeg", metadata.version("simplejpeg")))
    return ", ".join(f"{name} {version}" for name, version in found)


def pixels_of(data: bytes) -> int:
    """Return the number of pixels according to an image's header; 0 if the data is not an image."""
    with suppress(Exception), _opened(data) as image:  # decoding reports what is wrong
        return image.width * image.height
    return 0


def is_animated(data: bytes) -> bool:
    """Whether an image has frames or pages beyond the first."""
    with suppress(Exception), _opened(data) as image:  # a damaged later frame does not matter
        return bool(getattr(image, "is_animated", False))
    return False


def contents(path: Place) -> bytes:
    """Return a file's bytes; errors name the file."""
    with explained(readable(name_of(path)), "cannot be read"):
        return path.read_bytes()


def _opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data), formats=FORMATS)


def _jpeg(image: Image.Image, data: bytes) -> NDArray[np.uint8] | None:
    """Decode a plain JPEG with simplejpeg; return `None` for any other image."""
    if simplejpeg is None or image.format != "JPEG" or image.mode != "RGB" or _orientation(image) != 1:
        return None
    with suppress(Exception):  # simplejpeg is stricter than Pillow about slight damage
        found: NDArray[np.uint8] = simplejpeg.decode_jpeg(data, "RGB")
        return found
    return None


def to_rgb(name: str, image: Image.Image) -> Image.Image:
    """Return an open image as 8-bit RGB, upright, with transparent parts on white."""
    if image.mode == "F" or (image.mode == "I" and image.format != "PPM"):
        kind = "floating-point" if image.mode == "F" else "32-bit"
        raise DataError(f"{name}: must have 8 or 16 bits per channel, got a {kind} image; white must be 255 or 65535")
    image.load()
    orientation, upright = _orientation(image), image
    if image.mode.startswith("I"):  # 16 bits per channel, which Pillow stores in 32 for PPM files
        values = np.asarray(image).astype(np.int64)
        upright = Image.fromarray(np.clip(values >> 8, 0, 255).astype(np.uint8))
        upright.getexif()[0x0112] = orientation
    if orientation != 1:
        upright = ImageOps.exif_transpose(upright)
    if upright.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        layered = upright.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layered.size, "white"), layered).convert("RGB")
    return upright if upright.mode == "RGB" else upright.convert("RGB")  # convert() would copy it


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation; 1 (upright) if it cannot be read."""
    with suppress(Exception), warnings.catch_warnings():  # damaged tags in an intact image
        warnings.simplefilter("ignore")
        return int(image.getexif().get(0x0112, 1))
    return 1

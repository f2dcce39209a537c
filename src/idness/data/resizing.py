"""Resizes images and cuts out their centre, as torchvision does: by torch where it is in use, which takes less time, else by Pillow."""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Size = int | tuple[int, int] | None
Pixels = NDArray[np.uint8]
INTERPOLATIONS = {kind.name.lower(): kind for kind in Image.Resampling}
ALIKE = ("bilinear", "bicubic")
"""The interpolations for which torch computes what Pillow does, but for a rounding here and there."""
NARROW = 3
"""The aspect ratio above which Pillow, which resizes no more than the crop will keep, has less to do than torch."""
STRETCHED = 32
"""The aspect ratio above which a strip is cut before it is enlarged: a 5000 x 1 image would become 1.3 million pixels wide."""


def fitted(picture: Image.Image | Pixels, resize: Size, crop: Size, interpolation: str) -> Pixels:
    """Resize and crop a picture, or an array (height, width, channels); the result is such an array.

    Args:
        picture: what is resized.
        resize: length of the shorter side, or height and width; none leaves the size.
        crop: side of the square cut from the centre, or height and width; none cuts nothing.
        interpolation: how.
    """
    height, width = picture.shape[:2] if isinstance(picture, np.ndarray) else (picture.height, picture.width)
    if not resizes(resize, height, width):
        return _cropped(_array(picture), crop)
    narrow = crop is not None and max(height, width) > NARROW * min(height, width)
    if sys.modules.get("torch") is not None and interpolation in ALIKE and not narrow:
        return _cropped(_by_torch(_array(picture), _target(resize, width, height), interpolation), crop)
    if isinstance(picture, np.ndarray) and picture.shape[2] != 3:
        bands = [np.ascontiguousarray(picture[:, :, place]) for place in range(picture.shape[2])]
        return np.concatenate([fitted(Image.fromarray(band), resize, crop, interpolation) for band in bands], axis=2)
    image = Image.fromarray(picture) if isinstance(picture, np.ndarray) else picture
    return _cropped(_array(_by_pillow(image, resize, crop, interpolation)), crop)


def resizes(resize: Size, height: int, width: int) -> bool:
    """Say whether an image of this size changes its size."""
    if isinstance(resize, tuple):
        return (height, width) != resize
    return resize is not None and min(height, width) != resize


def pair(size: Size) -> tuple[int, int]:
    """Give height and width."""
    assert size is not None
    return size if isinstance(size, tuple) else (size, size)


def _array(picture: Image.Image | Pixels) -> Pixels:
    array = np.asarray(picture)
    return array if array.ndim == 3 else array[:, :, None]


def _target(resize: Size, width: int, height: int) -> tuple[int, int]:
    """Compute the width and height to which an image is resized."""
    if not isinstance(resize, int):
        return pair(resize)[::-1]
    short, long = min(width, height), max(width, height)
    scaled = int(resize * long / short)
    return (resize, scaled) if width <= height else (scaled, resize)


def _by_torch(array: Pixels, target: tuple[int, int], interpolation: str) -> Pixels:
    import torch

    # torch takes nothing that may not be written to, as a picture's own memory, nor what is read backwards.
    whole = torch.from_numpy(np.require(array, requirements=["C", "W"])).permute(2, 0, 1).unsqueeze(0)
    found = torch.nn.functional.interpolate(whole, target[::-1], mode=interpolation, antialias=True)
    pixels: Pixels = found[0].permute(1, 2, 0).numpy()
    return pixels


def _by_pillow(image: Image.Image, resize: Size, crop: Size, interpolation: str) -> Image.Image:
    filter_ = INTERPOLATIONS[interpolation]
    if isinstance(resize, tuple):
        return image.resize(resize[::-1], filter_)
    width, height = image.size
    short, long = min(width, height), max(width, height)
    if long > STRETCHED * short and crop is not None:
        # Only the centre survives the crop, so the rest of a strip need not be enlarged.
        keep = STRETCHED * short
        left, top = max(0, (width - keep) // 2), max(0, (height - keep) // 2)
        image = image.crop((left, top, left + min(width, keep), top + min(height, keep)))
    target = _target(resize, *image.size)
    if crop is None or interpolation != "bilinear":
        return image.resize(target, filter_)
    return _resized_centre(image, target, pair(crop), filter_)


def _resized_centre(
    image: Image.Image, target: tuple[int, int], crop: tuple[int, int], filter_: Image.Resampling
) -> Image.Image:
    """Resize only what the crop will keep: a third less work for 224 of 256. Some values are rounded to the next one."""
    height, width = min(crop[0], target[1]), min(crop[1], target[0])
    left, top = round((target[0] - width) / 2.0), round((target[1] - height) / 2.0)
    x, y = image.width / target[0], image.height / target[1]
    end = min((left + width) * x, image.width), min((top + height) * y, image.height)
    return image.resize((width, height), filter_, box=(left * x, top * y, *end))


def _cropped(array: Pixels, crop: Size) -> Pixels:
    if crop is None:
        return array
    height, width = pair(crop)
    lack_y, lack_x = max(0, height - array.shape[0]), max(0, width - array.shape[1])
    if lack_y or lack_x:
        array = np.pad(array, ((lack_y // 2, (lack_y + 1) // 2), (lack_x // 2, (lack_x + 1) // 2), (0, 0)))
    top, left = round((array.shape[0] - height) / 2.0), round((array.shape[1] - width) / 2.0)
    return array[top : top + height, left : left + width]

"""Preprocessing of images: resizing and cropping as in torchvision, normalisation, and the settings of known networks; thumbnails."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idness.core.errors import DataError, ModelError, OptionError, needed
from idness.data import embedded
from idness.data.sets import Picture, as_image

if TYPE_CHECKING:
    from torch import Tensor, nn

Size = int | tuple[int, int] | None
Pixels = NDArray[np.uint8]
INTERPOLATIONS = {kind.name.lower(): kind for kind in Image.Resampling}
ALIKE = ("bilinear", "bicubic")
"""Interpolation modes in which torch and Pillow agree up to rounding."""
STRETCHED = 32
"""Aspect ratio above which a strip is cropped before it is enlarged: a 5000 x 1 image would become 1.3 million pixels wide."""
MODES = {1: "L", 3: "RGB"}
"""Pillow's mode for each number of channels."""
THUMBNAIL = 64
"""The longest side of a thumbnail, in pixels."""
WAY = "4"
"""Version of the pixels that this module computes; raising it invalidates stored activations."""


@dataclass(frozen=True)
class Preprocessing:
    """The preprocessing of a network's input; the lengths of mean and std are the number of channels (1 is grey).

    Args:
        resize: length of the shorter side, or height and width; `None` keeps the size.
        crop: side of the square cut from the centre, or height and width; `None` does not crop.
        mean: value subtracted from each channel, whose values are in [0, 1].
        std: value by which each channel is then divided.
        interpolation: nearest, bilinear, bicubic, lanczos, box or hamming.
    """

    resize: Size = None
    crop: Size = None
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        for name, read in (("resize", _size), ("crop", _size), ("mean", _channels), ("std", _channels)):
            object.__setattr__(self, name, read(name, getattr(self, name)))
        if len(self.mean) != len(self.std):
            raise OptionError(f"Preprocessing: mean and std must have the same length, got {self.mean}, {self.std}")
        if not all(value > 0 for value in self.std):
            raise OptionError(f"Preprocessing: std must be above 0, got {list(self.std)}")
        if not isinstance(self.interpolation, str) or self.interpolation not in INTERPOLATIONS:
            raise OptionError(f"Preprocessing: interpolation must be one of {', '.join(INTERPOLATIONS)}")

    @property
    def channels(self) -> int:
        """The number of channels of the network's input."""
        return len(self.mean)

    @property
    def plain(self) -> bool:
        """Whether values stay in [0, 1] and are not normalised."""
        return not any(self.mean) and all(value == 1 for value in self.std)

    @property
    def size(self) -> tuple[int, int] | None:
        """The height and width of the result; `None` if they depend on the image."""
        if self.crop is not None:
            return _pair(self.crop)
        return self.resize if isinstance(self.resize, tuple) else None

    def pixels(self, image: Image.Image | NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Resize and crop an image to an array (height, width, channels) of uint8."""
        if isinstance(image, np.ndarray):
            if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] not in (3, self.channels):
                given = f"{image.dtype} of shape {image.shape}"
                raise DataError(f"Preprocessing: an array must be uint8 (height, width, {self.channels}), got {given}")
            image = image if image.shape[2] == self.channels else Image.fromarray(image)
        if isinstance(image, Image.Image):
            if (mode := MODES.get(self.channels)) is None:
                given = f"{self.channels} channels, got an image file"
                raise DataError(f"Preprocessing: mean and std have {given}; use .npz")
            image = image if image.mode == mode else image.convert(mode)  # which would copy it
        return fitted(image, self.resize, self.crop, self.interpolation)

    def normalize(self, pixels: NDArray[np.uint8] | Tensor) -> Tensor:
        """Return uint8 (..., height, width, channels) as normalised float32 (..., channels, height, width)."""
        import torch

        values = torch.as_tensor(pixels).movedim(-1, -3).to(torch.float32, memory_format=torch.contiguous_format)
        mean, std = (values.new_tensor(part).view(-1, 1, 1) for part in (self.mean, self.std))
        return values.div_(255).sub_(mean).div_(std)

    def normalize_array(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the result of `normalize` as an array, computed with NumPy alone."""
        values = np.moveaxis(pixels, -1, -3).astype(np.float32, order="C") / np.float32(255)
        mean, std = (np.array(part, np.float32).reshape(-1, 1, 1) for part in (self.mean, self.std))
        found: NDArray[np.float32] = (values - mean) / std
        return found

    def __call__(self, image: Image.Image | NDArray[np.uint8]) -> Tensor:
        """Return an image as normalised float32 (channels, height, width)."""
        return self.normalize(np.array(self.pixels(image)))

    def describe(self) -> str:
        """Return the preprocessing in one line."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return ", ".join(f"{name} {value}" for name, value in given.items())

    def suspicion(self, sample: NDArray[np.uint8]) -> str | None:
        """Return what seems wrong with the normalisation, given a sample of images (N, H, W, C); `None` if nothing does."""
        if self.plain:
            return "images are not normalised (mean 0, std 1); most networks were trained with a mean and std; set them in preprocessing"
        if max(self.mean) > 1.5 or max(self.std) > 1.5:
            return f"mean and std must refer to values in [0, 1], got mean {list(self.mean)}, std {list(self.std)}; divide them by 255"
        values = self.normalize(sample)
        centre, spread = float(values.mean()), float(values.std())
        if len(sample) >= 16 and (abs(centre) > 2.0 or not 0.2 < spread < 4.0):
            return f"normalised images have mean {centre:.2f}, std {spread:.2f}, not about 0 and 1; check preprocessing"
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Preprocessing:
        """Return the preprocessing from the values of `to_dict` or a table of a TOML file."""
        known = [field.name for field in fields(cls)]
        for key in values:
            if key not in known:
                raise OptionError(f"Preprocessing: unknown option {key!r}; it takes {', '.join(known)}")
        return cls(**values)


def preprocessing_for(model: nn.Module, spec: str = "", weights: str | None = None) -> Preprocessing | None:
    """Return the preprocessing that a network expects: its `preprocessing` attribute, or that of torchvision, timm or idness; else `None`.

    `spec` is the network's name, such as `torchvision:resnet50`, and `weights` the file of its weights, `None` for pretrained ones:
    torchvision's file names contain the version of the weights.
    """
    own = getattr(model, "preprocessing", None)
    if isinstance(own, Preprocessing):
        return own
    if isinstance(own, Mapping):
        return Preprocessing.from_dict(own)
    if embedded.owns(spec):
        return Preprocessing.from_dict(embedded.preprocessing(spec.partition(":")[0]))
    kind, _, name = spec.partition(":")
    if kind == "torchvision":
        return _of_torchvision(name, weights)
    if kind == "timm" or hasattr(model, "pretrained_cfg"):
        return _of_timm(model)
    return None


def _of_torchvision(name: str, weights: str | None) -> Preprocessing:
    models = needed("torchvision.models", f"torchvision:{name}", "models", ModelError)
    name, _, version = name.partition(":")
    known = list(models.get_model_weights(name))
    # Pretrained weights are torchvision's DEFAULT, unless a version is named.
    file = Path(weights).name if weights else version or models.get_model_weights(name).DEFAULT.name
    # Other files are assumed to follow the first version, the plain recipe of the papers, unless their name is that of another version.
    chosen = next((entry for entry in known if entry.url.rsplit("/", 1)[-1] == file or entry.name == file), known[0])
    how = chosen.transforms()
    return Preprocessing(how.resize_size[0], how.crop_size[0], how.mean, how.std, how.interpolation.value)


def _of_timm(model: nn.Module) -> Preprocessing:
    config = needed("timm.data", type(model).__name__, "models", ModelError).resolve_model_data_config(model)
    height, width = config["input_size"][-2:]
    scaled = tuple(math.floor(side / config["crop_pct"]) for side in (height, width))
    squash = config.get("crop_mode") == "squash" or scaled[0] != scaled[1]
    interpolation = config["interpolation"] if config["interpolation"] in INTERPOLATIONS else "bicubic"
    resize = scaled if squash else scaled[0]
    return Preprocessing(resize, (height, width), config["mean"], config["std"], interpolation)


def _size(name: str, value: Any) -> Size:
    sides = (value,) if isinstance(value, int) else tuple(value) if isinstance(value, list | tuple) else ()
    right = 1 <= len(sides) <= 2 and all(type(side) is int and 1 <= side <= 16_384 for side in sides)
    if value is not None and not right:
        raise OptionError(f"Preprocessing: {name} must be a length, or height and width, in [1, 16384]; got {value!r}")
    return None if value is None else sides[0] if len(sides) == 1 else (sides[0], sides[1])


def _channels(name: str, value: object) -> tuple[float, ...]:
    numbers = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else ()
    if not numbers or not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
        raise OptionError(f"Preprocessing: {name} must be numbers, one per channel, got {value!r}")
    return tuple(float(number) for number in numbers)


def fitted(picture: Image.Image | Pixels, resize: Size, crop: Size, interpolation: str) -> Pixels:
    """Return an image or array (height, width, channels) resized and cropped to an array, by torch if imported, else by Pillow."""
    height, width = picture.shape[:2] if isinstance(picture, np.ndarray) else (picture.height, picture.width)
    if isinstance(resize, int) and crop is not None and max(height, width) > STRETCHED * min(height, width):
        # Only the centre remains after the crop, so the rest of a strip need not be enlarged.
        keep = STRETCHED * min(height, width)
        picture = _cropped(_array(picture), (min(height, keep), min(width, keep)))
        height, width = picture.shape[:2]
    target = _target(resize, height, width)
    if target == (height, width):
        return _cropped(_array(picture), crop)
    if sys.modules.get("torch") is not None and interpolation in ALIKE:
        return _cropped(_by_torch(_array(picture), target, interpolation), crop)
    if isinstance(picture, np.ndarray) and picture.shape[2] != 3:
        bands = [Image.fromarray(np.ascontiguousarray(band)) for band in np.moveaxis(picture, 2, 0)]
        return np.concatenate([fitted(band, resize, crop, interpolation) for band in bands], axis=2)
    image = Image.fromarray(picture) if isinstance(picture, np.ndarray) else picture
    return _cropped(_array(image.resize(target[::-1], INTERPOLATIONS[interpolation])), crop)


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return size if isinstance(size, tuple) else (size, size)


def _target(resize: Size, height: int, width: int) -> tuple[int, int]:
    """Return the height and width to which an image is resized."""
    if not isinstance(resize, int):
        return resize or (height, width)
    scaled = int(resize * max(height, width) / min(height, width))
    return (scaled, resize) if width <= height else (resize, scaled)


def _array(picture: Image.Image | Pixels) -> Pixels:
    array = np.asarray(picture)
    return array if array.ndim == 3 else array[:, :, None]


def _by_torch(array: Pixels, target: tuple[int, int], interpolation: str) -> Pixels:
    import torch

    # torch needs writable memory with positive strides.
    whole = torch.from_numpy(np.require(array, requirements=["C", "W"])).permute(2, 0, 1).unsqueeze(0)
    found = torch.nn.functional.interpolate(whole, target, mode=interpolation, antialias=True)
    pixels: Pixels = found[0].permute(1, 2, 0).numpy()
    return pixels


def _cropped(array: Pixels, crop: Size) -> Pixels:
    if crop is None:
        return array
    height, width = _pair(crop)
    lack_y, lack_x = max(0, height - array.shape[0]), max(0, width - array.shape[1])
    if lack_y or lack_x:
        array = np.pad(array, ((lack_y // 2, (lack_y + 1) // 2), (lack_x // 2, (lack_x + 1) // 2), (0, 0)))
    top, left = round((array.shape[0] - height) / 2.0), round((array.shape[1] - width) / 2.0)
    return array[top : top + height, left : left + width]


def thumbnail(picture: Picture, side: int = THUMBNAIL) -> Image.Image:
    """Return an RGB copy of an image, shrunk to `side` if it is larger."""
    small = as_image(picture).convert("RGB")
    small.thumbnail((side, side))
    return small


def encoded(picture: Picture, side: int = THUMBNAIL) -> tuple[bytes, str]:
    """Return the bytes of a thumbnail and their media type: PNG if the image is already that small, else WebP."""
    small, buffer = thumbnail(picture, side), io.BytesIO()
    if max(picture.shape if isinstance(picture, np.ndarray) else picture.size) <= side:
        small.save(buffer, "PNG", optimize=True)
        return buffer.getvalue(), "image/png"
    small.save(buffer, "WEBP", quality=80)
    return buffer.getvalue(), "image/webp"

"""Image classifiers of Hugging Face transformers, by name (`hf:NAME`) or from a folder of `save_pretrained`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from idness.core.errors import ModelError, OptionError, needed
from idness.data import Preprocessing

PREFIX = "hf:"
APART = 2.0
"""Maximum mean difference, in grey levels, at which preprocessing is considered equal to an image processor."""


class HuggingFaceClassifier(nn.Module):
    """A network of `AutoModelForImageClassification` that maps a batch of images to logits."""

    preprocessing: Preprocessing | None = None

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.config = model, model.config

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(pixel_values=images).logits
        return logits


def load_hugging_face(name: str, pretrained: bool = True) -> HuggingFaceClassifier:
    """Load a classifier from the hub, its cache or a folder, with its preprocessing if that can be expressed as `Preprocessing`.

    Raises:
        ModelError: if there is no such network, or it has no trained classifier.
    """
    spec = f"{PREFIX}{name}"
    transformers = needed("transformers", spec, "hf", ModelError)
    auto = transformers.AutoModelForImageClassification
    try:
        if pretrained:
            model, loaded = auto.from_pretrained(name, output_loading_info=True)
        else:
            model, loaded = auto.from_config(transformers.AutoConfig.from_pretrained(name)), {}
    except (OSError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise ModelError(f"{spec}: cannot be loaded ({reason}); is it an image classifier of the hub?") from error
    missing = sorted(loaded.get("missing_keys", ()))
    if missing:
        raise ModelError(f"{spec}: has no trained classifier ({', '.join(missing[:2])} missing); fine-tune it first")
    made = HuggingFaceClassifier(model.eval())
    with suppress(OSError, ValueError):  # without an image processor, preprocessing is unknown
        made.preprocessing = preprocessing_of(transformers.AutoImageProcessor.from_pretrained(name))
    return made


def preprocessing_of(processor: Any) -> Preprocessing | None:
    """Return preprocessing that yields the same pixels as an image processor; `None` if there is none.

    Processors interpret their settings differently, so each interpretation is compared with the processor on an image.
    """
    coarse = np.random.default_rng(0).integers(0, 256, (15, 20, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((640, 480), Image.Resampling.BICUBIC)
    expected = torch.as_tensor(np.asarray(processor(images=image, return_tensors="np")["pixel_values"][0]))
    for found in _readings(processor.to_dict()):
        made = found(image)
        if made.shape == expected.shape:
            apart = (made - expected).abs() * torch.tensor(found.std).view(-1, 1, 1)
            if 255 * float(apart.mean()) <= APART:
                return found
    return None


def _readings(settings: Mapping[str, Any]) -> Iterator[Preprocessing]:
    """Yield the possible interpretations of an image processor's settings."""
    size = _side(settings.get("size")) if settings.get("do_resize", True) else None
    crop = _side(settings.get("crop_size")) if settings.get("do_center_crop") else None
    plans = [(size, crop)]
    if isinstance(size, int):
        plans += [
            (int(size / (settings.get("crop_pct") or 0.875)), size),
            ((size, size), None),
            (256 * size // 224, crop),
        ]
    options: dict[str, Any] = {"interpolation": Image.Resampling(settings.get("resample") or 2).name.lower()}
    if settings.get("do_normalize", True):
        options |= {"mean": tuple(settings["image_mean"]), "std": tuple(settings["image_std"])}
    for resize, cut in plans:
        try:
            yield Preprocessing(resize=resize, crop=cut, **options)
        except OptionError:
            continue


def _side(size: Any) -> int | tuple[int, int] | None:
    if isinstance(size, Mapping) and size.get("height") and size.get("width"):
        return int(size["height"]), int(size["width"])
    edge = size.get("shortest_edge") if isinstance(size, Mapping) else size
    return int(edge) if edge else None

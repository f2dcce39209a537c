"""The forms in which loaders give batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from idness.core.errors import DataError


def unpacked(batch: Any) -> tuple[Tensor, Tensor | None]:
    """Give the images of a batch, and its labels where it has some."""
    if isinstance(batch, Tensor):
        return batch, None
    if isinstance(batch, Mapping):
        images = next((batch[key] for key in ("images", "image", "pixel_values") if key in batch), None)
        labels = next((batch[key] for key in ("labels", "label") if key in batch), None)
        if isinstance(images, Tensor):
            return images, labels
    if isinstance(batch, tuple | list) and batch and isinstance(batch[0], Tensor):
        return batch[0], batch[1] if len(batch) > 1 else None
    raise DataError(
        f"SplitModel: a batch must be images, (images, labels) or a mapping with 'images', got {type(batch).__name__}"
    )

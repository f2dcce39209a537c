"""Runs a network over sets of images and keeps what the analyses need: activations, and what enters the final ReLU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from idness.activations.prerelu import Rectifier, capture
from idness.core.errors import DataError
from idness.core.progress import Listener
from idness.core.types import Activations
from idness.data import ActivationsSet, ImageSet, Preprocessing, read_batches
from idness.data.sets import select
from idness.data.thumbnails import SIDE, thumbnail
from idness.networks.split import SplitModel

BATCH = 64


@dataclass(frozen=True, eq=False)
class Captured:
    """Holds one set as a network sees it.

    Args:
        name: the set.
        acts: its activations, with labels where known.
        pre: what enters the final ReLU, pooled; none where there is no such ReLU.
        rectifier: the final ReLU.
        images: the set itself; none where it is activations.
        index: the place of each row in it.
    """

    name: str
    acts: Activations
    pre: Tensor | None = None
    rectifier: Rectifier | None = None
    images: ImageSet | None = None
    index: NDArray[np.int64] | None = None

    def thumbnails(self, rows: NDArray[np.int64], size: int = SIDE) -> list[NDArray[np.uint8]]:
        """Read the images of some rows, no larger than `size`."""
        if self.images is None or self.index is None:
            raise DataError(f"{self.name}: is activations, so there are no images to show")
        return [np.asarray(thumbnail(self.images.picture(int(self.index[row])), size)) for row in rows]


def capture_set(
    name: str,
    data: ImageSet | ActivationsSet,
    split: SplitModel | None,
    preprocessing: Preprocessing,
    *,
    limit: int | None = None,
    listener: Listener | None = None,
) -> Captured:
    """Run a set through a network, or read it where it is activations.

    Args:
        name: the set's name.
        data: the set.
        split: the network; none where only activations were given.
        preprocessing: brings pictures to what the network expects.
        limit: the most images used, evenly picked.
        listener: hears of progress.
    """
    hear = listener or Listener()
    if isinstance(data, ActivationsSet):
        acts = Activations.concat(data.batches(4096))
        step = 1 if limit is None else max(1, -(-len(acts) // limit))
        return Captured(name, acts[::step])
    if split is None:
        raise DataError(f"{name}: is a set of images, so a network is needed")
    images = data if limit is None else select(data, {"sample": limit})
    hear.phase(name, len(images))
    spans = [(start, min(start + BATCH, len(images))) for start in range(0, len(images), BATCH)]
    parts, places, reasons = [], [], []
    for batch in read_batches(images, preprocessing, spans):
        reasons += [reason for _, reason in batch.skipped]
        if len(batch.pixels):
            parts.append(capture(split, preprocessing.normalize(batch.pixels)))
            places.append(batch.index)
        hear.advance(batch.stop - batch.start)
    if not parts:
        raise DataError(f"{name}: none of its {len(images)} images can be read; the first: {(reasons or ['empty'])[0]}")
    index = np.concatenate(places)
    acts = Activations.concat(part.acts for part in parts)
    if images.labels is not None:
        acts = Activations(acts.features, acts.logits, torch.from_numpy(images.labels[index]))
    pres = [part.pre for part in parts if part.pre is not None]
    whole = len(pres) == len(parts)
    return Captured(
        name, acts, torch.cat(pres) if whole else None, parts[0].rectifier if whole else None, images, index
    )

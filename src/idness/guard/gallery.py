"""Thumbnails of calibration images, to show the nearest ones to a new image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import normalize

from idness.core.types import Activations
from idness.data.preprocess import encoded
from idness.data.sets import ImageSet
from idness.detectors.detector import Detector

MOST = 240
"""Maximum number of images: enough to show neighbours, in about a megabyte."""


@dataclass(frozen=True, eq=False)
class Gallery:
    """Thumbnails (PNG or WebP files) of calibration images, with features of unit length, predicted classes and scores."""

    thumbnails: tuple[bytes, ...]
    features: Tensor
    labels: Tensor
    scores: Tensor

    def __len__(self) -> int:
        return len(self.thumbnails)

    @staticmethod
    def of(images: ImageSet, acts: Activations, detector: Detector) -> Gallery:
        """Return a gallery of at most `MOST` images of a set, evenly spaced among those with activations."""
        count = min(len(acts), MOST)
        some = acts[torch.arange(count) * len(acts) // count]
        assert some.index is not None
        thumbnails = tuple(encoded(images.picture(place))[0] for place in some.index.tolist())
        unit, labels = normalize(some.features.cpu().float(), dim=1).half(), some.logits.argmax(dim=1)
        return Gallery(thumbnails, unit, labels.cpu(), detector.score(some).cpu())

    def nearest(self, features: Tensor, count: int) -> list[tuple[int, float]]:
        """Return the images most similar to one image's features as (index, cosine similarity)."""
        # Half precision changes lengths by a thousandth, more than the difference between similar images.
        similarity = normalize(self.features.float(), dim=1) @ normalize(features.cpu().float(), dim=0)
        found = similarity.topk(min(count, len(self)))
        return list(zip(found.indices.tolist(), found.values.tolist(), strict=True))

    def tensors(self) -> dict[str, Tensor]:
        """Return the gallery as named tensors, for a file."""
        return {
            "gallery.bytes": torch.frombuffer(bytearray(b"".join(self.thumbnails)), dtype=torch.uint8),
            "gallery.lengths": torch.tensor([len(data) for data in self.thumbnails]),
            "gallery.features": self.features.contiguous(),
            "gallery.labels": self.labels.contiguous(),
            "gallery.scores": self.scores.contiguous(),
        }

    @staticmethod
    def from_tensors(tensors: Mapping[str, Tensor]) -> Gallery | None:
        """Return the gallery of these named tensors; `None` if there is none."""
        if "gallery.bytes" not in tensors:
            return None
        joined, ends = tensors["gallery.bytes"].numpy().tobytes(), [0, *tensors["gallery.lengths"].cumsum(0).tolist()]
        thumbnails = tuple(joined[start:end] for start, end in pairwise(ends))
        return Gallery(thumbnails, *(tensors[f"gallery.{name}"] for name in ("features", "labels", "scores")))

"""A few calibration images, kept small, so that a person can see what an image is nearest to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from idness.core.errors import InputError
from idness.data.preprocess import encoded
from idness.data.sets import Picture

MOST = 240
"""How many images are kept: a few hundred show the neighbourhood and weigh about a megabyte."""


@dataclass(frozen=True, eq=False)
class Gallery:
    """Holds thumbnails of calibration images with their features, classes and scores.

    Args:
        thumbnails: the bytes of small PNG or WebP files.
        features: the images' features (N, D), of length 1.
        labels: the network's classes.
        scores: the ID-ness of each.
    """

    thumbnails: tuple[bytes, ...]
    features: Tensor
    labels: Tensor
    scores: Tensor

    def __post_init__(self) -> None:
        rows = (self.features, self.labels, self.scores)
        if self.features.ndim != 2 or not all(len(part) == len(self.thumbnails) for part in rows):
            raise InputError(
                f"Gallery: needs one row of features, a label and a score per thumbnail, got {len(self.thumbnails)} thumbnails"
                f" and {len(self.features)}, {len(self.labels)}, {len(self.scores)}"
            )

    def __len__(self) -> int:
        return len(self.thumbnails)

    @staticmethod
    def of(pictures: Sequence[Picture], features: Tensor, labels: Tensor, scores: Tensor) -> Gallery:
        """Make a gallery from pictures and what the network and the detector made of them."""
        unit = normalize(features.cpu().float(), dim=1).half()
        return Gallery(tuple(encoded(picture)[0] for picture in pictures), unit, labels.cpu(), scores.cpu())

    def nearest(self, features: Tensor, count: int) -> list[list[tuple[int, float]]]:
        """Find for each row the images of the largest cosine similarity, as (index, similarity)."""
        # Half precision leaves lengths off by a thousandth, which is more than near images differ.
        similarity = normalize(features.cpu().float(), dim=1) @ normalize(self.features.float(), dim=1).T
        found = similarity.topk(min(count, len(self)), dim=1)
        return [
            list(zip(indices, values, strict=True))
            for indices, values in zip(found.indices.tolist(), found.values.tolist(), strict=True)
        ]

    def tensors(self) -> dict[str, Tensor]:
        """Give everything as tensors by name, for a file."""
        joined = b"".join(self.thumbnails)
        return {
            "gallery.bytes": torch.frombuffer(bytearray(joined), dtype=torch.uint8),
            "gallery.lengths": torch.tensor([len(data) for data in self.thumbnails]),
            "gallery.features": self.features.contiguous(),
            "gallery.labels": self.labels.contiguous(),
            "gallery.scores": self.scores.contiguous(),
        }

    @staticmethod
    def from_tensors(tensors: Mapping[str, Tensor]) -> Gallery | None:
        """Take what `tensors` gave; none where a file has no gallery."""
        if "gallery.bytes" not in tensors:
            return None
        joined, ends = tensors["gallery.bytes"].numpy().tobytes(), tensors["gallery.lengths"].cumsum(0).tolist()
        if sorted([0, *ends]) != [0, *ends] or (ends or [0])[-1] != len(joined):
            raise InputError(f"Gallery: lengths must add up to the {len(joined)} bytes of its thumbnails")
        starts = [0, *ends[:-1]]
        thumbnails = tuple(joined[start:end] for start, end in zip(starts, ends, strict=True))
        return Gallery(thumbnails, *(tensors[f"gallery.{name}"] for name in ("features", "labels", "scores")))


def chosen(count: int, most: int = MOST) -> list[int]:
    """Choose which of `count` images to keep: evenly spread, in order."""
    kept = min(count, most)
    return [index * count // kept for index in range(kept)] if kept else []

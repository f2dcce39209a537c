"""Fuse -- several detectors as one score, standardized on ID images alone; idness, 2026."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from idness.core.errors import IdnessWarning, InputError, OptionError
from idness.core.types import Activations, Head, is_signed
from idness.detectors.detector import Detector
from idness.detectors.registry import build, detectors_in

LEAST, CLASSES = 50, 20
"""Minimum number of ID images to fit on, and to standardize on; they must show half of the classes, or of `CLASSES`."""

SIGNED = {"actsub": "knn"}
"""Parts for signed features, in place of those that require non-negative ones; `ebo` in place of others."""


@dataclass(kw_only=True)
class Fuse(Detector):
    """Sum of the scores of several methods, each standardized by its mean and deviation on ID images.

    Methods fail on different images. The parts are fitted on training images and standardized on validation images; if
    only one of both is given, each gets half of it. With few images, or images of few classes, only parts that need
    hardly any training data are used. If some features are negative, a part that requires non-negative ones is replaced by
    what it builds on: `actsub` by `knn`, others by `ebo`.

    Args:
        parts: detectors, or text such as `vra+actsub+vim`.
    """

    formula = r"\sum_i (s_i - m_i) / \sigma_i"
    assumes = "the parts fail on different images"
    needs_train = needs_val = uses_head = True
    other = {"parts": "ebo+knn(k=5)"}

    parts: Any = "vra(low=60, high=99)+actsub(percentile=85, power=2, k=10)+vim(share=50)+nci(alpha=0.001)"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.parts = detectors_in(self, "parts")
        if any(isinstance(part, Fuse) for part in self.parts):
            raise OptionError(f"Fuse: a part must be a method other than fuse, got {self.parts!r}")
        for part in self.parts:
            if part.input_edit is not None:
                raise OptionError(f"Fuse: a part must need one pass of the network, got {part.name}, which needs two")

    def options(self) -> dict[str, Any]:
        return {"parts": "+".join(part.label() for part in self.parts)}

    def inner(self) -> Iterator[tuple[str, Detector]]:
        # Parts that were left out are not fitted; their weight is zero.
        return ((f"part{i}", part) for i, part in enumerate(self.parts) if part.fitted or not self.fitted)

    @property
    def used(self) -> list[str]:
        """The names of the parts that are in use, after `fit`."""
        return [part.name for part, weight in zip(self.parts, self.weights_, strict=True) if weight != 0]

    def learn(self, head: Head, train: Activations, val: Activations) -> None:
        if train is val:  # every other image, as they may be sorted by class
            train, val = train[::2], train[1::2] if len(train) > 1 else train
        shown = len(torch.unique(train.logits.argmax(dim=1)))
        scarce = min(len(train), len(val)) < LEAST or shown < min(head.classes, CLASSES) / 2
        if is_signed(train) or is_signed(val):
            self.parts = tuple(
                build(SIGNED.get(part.name, "ebo")) if part.assumes_nonnegative else part for part in self.parts
            )
        # Parts that learn nothing, or only percentiles of all activations, need hardly any images.
        used = [not scarce or not part.needs_train or part.needs_val for part in self.parts]
        if not any(used):
            raise InputError(
                f"Fuse: needs at least {2 * LEAST} ID images of all classes, got {len(train) + len(val)} images that the"
                f" network assigns to {shown} of {head.classes} classes"
            )
        if not all(used):
            left = ", ".join(part.name for part, kept in zip(self.parts, used, strict=True) if not kept)
            text = f"Fuse: {len(train)} ID images to learn from are too few, or of too few classes, for {left}"
            warnings.warn(f"{text}; give at least {2 * LEAST} images of all classes", IdnessWarning, stacklevel=5)
        weights, means = [], []
        for part, kept in zip(self.parts, used, strict=True):
            part._forget()
            scores = part.fit(head, train, val=val).score(val).double() if kept else train.features.new_zeros(1)
            means.append(scores.mean())
            weights.append(kept / scores.std(correction=0).clamp(min=1e-9))
        self.means_, self.weights_ = torch.stack(means).float(), torch.stack(weights).float()

    def rate(self, acts: Activations) -> Tensor:
        scores = [
            (part.rate(acts).float() - self.means_[place]) * self.weights_[place]
            for place, part in enumerate(self.parts)
            if part.fitted
            and (part.state() or not part.needs_train)  # loaded from a file, a part that was left out is empty
        ]
        return torch.stack(scores).sum(dim=0)

"""Fuse -- several detectors as one score, standardized on ID images alone; idness, 2026."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import Tensor

from idness.core.errors import IdnessWarning, OptionError
from idness.core.types import Activations, Head, is_signed
from idness.detectors.detector import Detector
from idness.detectors.registry import detectors_in

LEAST, CLASSES = 50, 20
"""Minimum number of ID images to fit on, and to standardize on; they must show half of the classes, or of `CLASSES`."""
MANY = 250
"""Number of classes from which `FOR_MANY` is used: `FOR_FEW` was chosen on networks of up to 100 classes, `FOR_MANY` of 700."""
VRA, ACTSUB, VIM = "vra(low=60, high=99)", "actsub(percentile=85, power=2, k=10)", "vim(share=50)"
RECIPES: tuple[dict[str, tuple[float, float]], ...] = (
    {VRA: (1.0, inf)},
    {"ebo(temperature=1)": (1.0, inf)},
    {VRA: (1.0, inf), "ras": (0.25, inf), ACTSUB: (1.0, -1.25), VIM: (1.0, -1.25)},
    {VRA: (1.0, inf), ACTSUB: (1.0, inf), VIM: (1.0, inf), "nci(alpha=0.001)": (1.0, inf)},
    {"nnguide(k=10)": (1.0, inf), "ras": (0.5, inf), "knn(k=50)": (1.0, -0.5), VIM: (1.0, -0.5)},
)
"""The parts that `auto` chooses from, each with its weight and the upper limit of its standardized score. Saved detectors contain a
place in this table, so it is only appended to."""
ALONE, ALONE_SIGNED, FOR_FEW, FOR_MANY, FOR_SIGNED = range(5)


@dataclass(kw_only=True)
class Fuse(Detector):
    """Sum of the scores of several methods, each standardized by its mean and deviation on ID images.

    Methods fail on different images. The parts are fitted on training images and standardized on validation images; if
    only one of both is given, each gets half of it. By default, the parts are chosen by the network:

    - `vra`, a quarter of `ras`, and `actsub` and `vim` where they are more than 1.25 deviations below their means: being
      close to ID features does not outweigh low confidence;
    - from 250 classes, `vra`, `actsub`, `vim` and `nci`;
    - if some features are negative, `nnguide`, half of `ras`, and `knn` and `vim`, limited likewise at 0.5 deviations;
    - with few images, or images of few classes, `vra` alone, or `ebo` if some features are negative.

    Args:
        parts: detectors, or text such as `vra+actsub+vim`, which count in full; `auto` chooses them.
    """

    formula = r"\sum_i w_i \min(s_i', c_i), \quad s_i' = (s_i - m_i) / \sigma_i"
    assumes = "the parts fail on different images"
    needs_train = needs_val = uses_head = True
    other = {"parts": "ebo+knn(k=5)"}

    parts: Any = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.parts == "auto":
            return
        self.parts = detectors_in(self, "parts")
        if any(isinstance(part, Fuse) for part in self.parts):
            raise OptionError(f"Fuse: a part must be a method other than fuse, got {self.parts!r}")
        for part in self.parts:
            if part.input_edit is not None:
                raise OptionError(f"Fuse: a part must need one pass of the network, got {part.name}, which needs two")

    def options(self) -> dict[str, Any]:
        return {"parts": self.parts if self.parts == "auto" else "+".join(part.label() for part in self.parts)}

    @property
    def used(self) -> tuple[Detector, ...]:
        """The parts that are in use; with `parts=auto` none before `fit`."""
        return tuple(vars(self).get("_parts", ()) if self.parts == "auto" else self.parts)

    def inner(self) -> Iterator[tuple[str, Detector]]:
        if self.parts == "auto" and not self.fitted and "recipe_" in vars(self):
            self._parts = Fuse(parts=list(RECIPES[int(self.recipe_)])).parts
        # Earlier versions saved no state of parts that were left out; they are not fitted.
        return ((f"part{i}", part) for i, part in enumerate(self.used) if part.fitted or not self.fitted)

    def learn(self, head: Head, train: Activations, val: Activations) -> None:
        if train is val:  # every other image, as they may be sorted by class
            train, val = train[::2], train[1::2] if len(train) > 1 else train
        shown, least = len(torch.unique(train.logits.argmax(dim=1))), min(len(train), len(val))
        factors = [(1.0, inf)] * len(self.parts)
        if self.parts == "auto":
            signed = is_signed(train) or is_signed(val)
            scarce = least < LEAST or shown < min(head.classes, CLASSES) / 2
            few = FOR_MANY if head.classes >= MANY else FOR_FEW
            self.recipe_ = torch.tensor(
                (ALONE_SIGNED if signed else ALONE) if scarce else FOR_SIGNED if signed else few
            )
            recipe = RECIPES[int(self.recipe_)]
            self._parts, factors = Fuse(parts=list(recipe)).parts, list(recipe.values())
            if scarce:
                text = f"Fuse: {len(train)} ID images to learn from are too few, or of too few classes, for more than"
                text += f" {self.used[0].name}; give at least {2 * LEAST} images of all classes"
                warnings.warn(text, IdnessWarning, stacklevel=5)
        weights, means = [], []
        for part, (factor, _) in zip(self.used, factors, strict=True):
            part._forget()
            scores = part.fit(head, train, val=val).score(val).double()
            means.append(scores.mean())
            weights.append(factor / scores.std(correction=0).clamp(min=1e-9))
        self.means_, self.weights_ = torch.stack(means).float(), torch.stack(weights).float()
        self.caps_ = torch.tensor([factor * cap for factor, cap in factors]).to(self.means_)

    def rate(self, acts: Activations) -> Tensor:
        # Detectors saved by earlier versions have no caps, and no state of parts that were left out.
        caps = vars(self).get("caps_", torch.full_like(self.means_, inf))
        scores = [
            torch.minimum((part.rate(acts).float() - self.means_[place]) * self.weights_[place], caps[place])
            for place, part in enumerate(self.used)
            if part.fitted and (part.state() or not part.needs_train)
        ]
        return torch.stack(scores).sum(dim=0)

"""AugMix -- Hendrycks et al., "AugMix: A Simple Data Processing Method to Improve Robustness and Uncertainty", ICLR 2020."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from idness.core.errors import needed
from idness.core.options import count, positive
from idness.training.objective import Objective, Outcome, method

OPERATIONS = (
    "autocontrast", "equalize", "posterize", "solarize", "rotate", "shear_x", "shear_y", "translate_x", "translate_y"
)  # fmt: skip
"""The operations of the paper; none is among the corruptions that robustness is tested on."""


def jsd_loss(clean: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return the Jensen-Shannon divergence of three predictions, from their logits."""
    shares = [logits.float().softmax(1) for logits in (clean, first, second)]
    # Clamped as in the authors' code, so that the logarithm is finite.
    mixture = (sum(shares, torch.zeros_like(shares[0])) / 3).clamp(1e-7, 1.0).log()
    return sum((F.kl_div(mixture, p, reduction="batchmean") for p in shares), mixture.new_zeros(())) / 3


def operate(image: Tensor, name: str, level: float) -> Tensor:
    """Return a uint8 image (3, H, W) after one operation, as in the authors' code with Pillow; new pixels are black.

    The level is in [-1, 1]; its sign is the direction of a rotation, shear or translation.
    """
    tv = needed("torchvision.transforms.v2.functional", "augmix", "train")
    _, height, width = image.shape
    shear, corner = math.degrees(math.atan(0.3 * level)), [0.0, 0.0]
    moves: dict[str, dict[str, Any]] = {
        "rotate": {"angle": int(30 * level)},
        "shear_x": {"shear": [shear, 0.0], "center": corner},
        "shear_y": {"shear": [0.0, shear], "center": corner},
        "translate_x": {"translate": [int(width / 3 * level), 0]},
        "translate_y": {"translate": [0, int(height / 3 * level)]},
    }
    if name in moves:
        still = {"angle": 0, "translate": [0, 0], "scale": 1.0, "shear": [0.0, 0.0]}
        changed: Tensor = tv.affine(image, **(still | moves[name]), interpolation=tv.InterpolationMode.BILINEAR)
        return changed
    numbers = {"posterize": [4 - int(4 * abs(level))], "solarize": [256 - int(256 * abs(level))]}
    changed = getattr(tv, name)(image, *numbers.get(name, []))
    return changed


def augmix(images: Tensor, severity: float = 3.0, width: int = 3, alpha: float = 1.0) -> Tensor:
    """Return uint8 images (N, 3, H, W), each mixed with `width` chains of one to three random operations; values stay in [0, 255]."""
    weights = torch.distributions.Dirichlet(torch.full((width,), alpha)).sample((len(images),))
    kept = torch.distributions.Beta(alpha, alpha).sample((len(images),)).view(-1, 1, 1, 1)
    mixed = torch.zeros(images.shape)
    for row, image in enumerate(images):
        for weight in weights[row]:
            current = image
            for _ in range(int(torch.randint(1, 4, ()))):
                name = OPERATIONS[int(torch.randint(len(OPERATIONS), ()))]
                level = float(torch.empty(()).uniform_(0.1, severity)) / 10
                current = operate(current, name, level if torch.rand(()) < 0.5 else -level)
            mixed[row] += weight * current
    return (1 - kept) * images + kept * mixed


def three_views(image: Tensor, severity: float = 3.0, width: int = 3, alpha: float = 1.0) -> Tensor:
    """Return an image (3, H, W) and two mixtures of it, as one tensor (3, 3, H, W)."""
    mixed = [augmix(image[None], severity, width, alpha)[0] for _ in range(2)]
    return torch.stack([image.float(), *mixed])


@method("augmix")
@dataclass(eq=False, repr=False)
class AugMix(Objective):
    """Cross-entropy plus a penalty for different predictions on an image and two random mixtures of it."""

    recipe = {"epochs": 100, "lr": 0.1, "weight_decay": 5e-4}

    severity: float = 3.0
    width: int = count(3)
    alpha: float = positive(1.0)
    weight: float = 12.0

    def view(self) -> Callable[[Tensor], Tensor]:
        """Return the function that mixes one image, for worker processes, since it takes longer than the network."""
        return partial(three_views, severity=self.severity, width=self.width, alpha=self.alpha)

    def forward(self, images: Tensor, labels: Tensor) -> Outcome:
        """Return the loss of one batch in three views, which are created here unless worker processes did it."""
        views = [images.float(), *(self._mixed(images) for _ in range(2))] if images.ndim == 4 else images.unbind(1)
        clean, first, second = self.model(self.normalise(torch.cat(list(views)))).chunk(3)
        return Outcome(F.cross_entropy(clean, labels) + self.weight * jsd_loss(clean, first, second), clean)

    def _mixed(self, images: Tensor) -> Tensor:
        return augmix(images.cpu(), self.severity, self.width, self.alpha).to(images.device)

"""RegMixup -- Pinto et al., "RegMixup: Mixup as a Regularizer Can Surprisingly Improve Accuracy and OOD", NeurIPS 2022."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from idness.core.options import nonnegative, positive
from idness.training.objective import Objective, Outcome, method


def regmixup_loss(
    clean: Tensor, mixed: Tensor, labels: Tensor, partners: Tensor, share: Tensor | float, weight: float
) -> Tensor:
    """Return the cross-entropy of the images plus that of their mixtures, whose labels are also mixed by `share`."""
    mixture = share * F.cross_entropy(mixed, labels) + (1 - share) * F.cross_entropy(mixed, partners)
    return F.cross_entropy(clean, labels) + weight * mixture


@method("regmixup")
@dataclass(eq=False, repr=False)
class RegMixup(Objective):
    """Cross-entropy of images and, as a regulariser, of mixtures of two of them."""

    recipe = {"epochs": 350, "lr": 0.1, "weight_decay": 5e-4, "nesterov": False, "milestones": (150, 250)}

    alpha: float = positive(20.0)
    weight: float = nonnegative(1.0)

    def forward(self, images: Tensor, labels: Tensor) -> Outcome:
        """Return the loss of one batch and its mixtures, in one pass so that batch norm sees both."""
        share = float(torch.distributions.Beta(self.alpha, self.alpha).sample())
        partner = torch.randperm(len(images)).to(images.device)
        x = self.normalise(images)
        logits = self.model(torch.cat([x, share * x + (1 - share) * x[partner]]))
        clean, mixed = logits.chunk(2)
        return Outcome(regmixup_loss(clean, mixed, labels, labels[partner], share, self.weight), clean)

"""LogitNorm -- Wei et al., "Mitigating Neural Network Overconfidence with Logit Normalization", ICML 2022."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from idness.core.checks import positive
from idness.training.objective import Objective, Outcome, method


def logitnorm_loss(logits: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Compute the cross-entropy of logits of one length, 1 / temperature."""
    # 1e-7 as in the authors' code: a row of zeros has no direction.
    length = logits.norm(dim=1, keepdim=True) + 1e-7
    return F.cross_entropy(logits / (length * temperature), labels)


@method("logitnorm")
@dataclass(eq=False, repr=False)
class LogitNorm(Objective):
    """Train on logits of constant length, so that confidence cannot grow with their norm."""

    recipe = {"epochs": 200, "lr": 0.1, "weight_decay": 5e-4, "nesterov": False, "milestones": (80, 140)}

    temperature: float = positive(0.04)

    def forward(self, images: Tensor, labels: Tensor) -> Outcome:
        """Compute the loss of one batch."""
        logits = self.model(self.normalise(images))
        return Outcome(logitnorm_loss(logits, labels, self.temperature), logits)

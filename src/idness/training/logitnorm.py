"""LogitNorm -- Wei et al., "Mitigating Neural Network Overconfidence with Logit Normalization", ICML 2022."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from idness.core.options import positive
from idness.training.objective import Objective, Outcome, method


def logitnorm_loss(logits: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Return the cross-entropy of logits scaled to norm 1 / temperature."""
    # 1e-7 as in the authors' code, for rows of zeros.
    length = logits.norm(dim=1, keepdim=True) + 1e-7
    return F.cross_entropy(logits / (length * temperature), labels)


@method("logitnorm")
@dataclass(eq=False, repr=False)
class LogitNorm(Objective):
    """Cross-entropy of logits scaled to a constant norm, so that confidence cannot grow with the norm."""

    recipe = {"epochs": 200, "lr": 0.1, "weight_decay": 5e-4, "nesterov": False, "milestones": (80, 140)}

    temperature: float = positive(0.04)

    def forward(self, images: Tensor, labels: Tensor) -> Outcome:
        logits = self.model(self.normalise(images))
        return Outcome(logitnorm_loss(logits, labels, self.temperature), logits)

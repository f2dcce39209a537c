"""LogitNorm -- Wei et al., "Mitigating Neural Network Overconfidence with Logit Normalization", ICML 2022."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from idness.core.errors import OptionError
from idness.training.objective import Objective, Outcome, method


def logitnorm_loss(logits: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Compute the cross-entropy of logits of one length, 1 / temperature."""
    # 1e-7 as in the authors' code: a row of zeros has no direction.
    length = logits.norm(dim=1, keepdim=True) + 1e-7
    return F.cross_entropy(logits / (length * temperature), labels)


@method("logitnorm")
class LogitNorm(Objective):
    """Train on logits of constant length, so that confidence cannot grow with their norm."""

    recipe = {"epochs": 200, "lr": 0.1, "weight_decay": 5e-4, "nesterov": False, "milestones": (80, 140)}

    def __init__(
        self, model: nn.Module, classes: int, mean: tuple[float, ...], std: tuple[float, ...], temperature: float = 0.04
    ) -> None:
        super().__init__(model, classes, mean, std)
        if not temperature > 0:
            raise OptionError(f"logitnorm: temperature must be above 0, got {temperature}")
        self.temperature = temperature

    def forward(self, images: Tensor, labels: Tensor) -> Outcome:
        """Compute the loss of one batch."""
        logits = self.model(self.normalise(images))
        return Outcome(logitnorm_loss(logits, labels, self.temperature), logits)

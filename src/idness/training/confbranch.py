"""ConfBranch -- DeVries & Taylor, "Learning Confidence for Out-of-Distribution Detection in Neural Networks", 2018."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from idness.core.options import positive
from idness.networks.modules import entering
from idness.networks.split import final_linear
from idness.training.objective import Objective, Outcome, method

TINY = 1e-12


def confidence_losses(logits: Tensor, confidence: Tensor, labels: Tensor, hinted: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss of the hinted predictions, and the penalty for low confidence.

    Predictions of `hinted` images are moved towards the label by 1 - confidence.
    """
    share = torch.where(hinted, confidence, torch.ones_like(confidence))
    right = logits.softmax(1).gather(1, labels[:, None])[:, 0]
    task = -(share * right + (1 - share)).clamp_min(TINY).log().mean()
    return task, -confidence.clamp_min(TINY).log().mean()


@method("confbranch")
@dataclass(eq=False, repr=False)
class ConfBranch(Objective):
    """Cross-entropy with a second head that predicts confidence: low confidence earns hints but is penalised.

    The result is the network with its plain classifier; `confidence` evaluates the second head.
    """

    recipe = {"epochs": 200, "lr": 0.1, "weight_decay": 5e-4, "milestones": (60, 120, 160), "gamma": 0.2}

    budget: float = positive(0.3)
    layer: str | None = None
    price: Tensor = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._final = [final_linear(self.model, self.layer)[2]]  # in a list, to register it only once
        self.branch = nn.Linear(self._final[0].in_features, 1)
        self.register_buffer("price", torch.tensor(0.1))

    def confidence(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and confidence of normalised images."""
        with entering(self._final[0]) as features:
            logits = self.model(images)
        return logits, torch.sigmoid(self.branch(features[-1]))[:, 0]

    def forward(self, images: Tensor, labels: Tensor) -> Outcome:
        """Return the loss of one batch, half of which gets hints."""
        logits, confidence = self.confidence(self.normalise(images))
        hinted = torch.rand(len(labels)).to(labels.device) < 0.5
        task, asked = confidence_losses(logits.float(), confidence.float(), labels, hinted)
        loss = task + self.price.clone() * asked
        if self.training:
            # Lowered while fewer hints are used than the budget allows; in place, since DDP holds a reference to this tensor.
            self.price.div_(torch.where(asked.detach() < self.budget, 1.01, 0.99))
        return Outcome(loss, logits)

"""CADRef -- Ling et al., "CADRef: Robust Out-of-Distribution Detection via Class-Aware Decoupled Relative Feature Leveraging", CVPR 2025"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from idness.core.checks import check_choice
from idness.core.types import Activations, Head
from idness.detectors.detector import Detector
from idness.detectors.readouts import READOUTS

LEAST = 1e-6
"""What a confidence counts for at least: the energy of unsure images can be negative, and would turn errors into merits."""


@dataclass(kw_only=True)
class CADRef(Detector):
    """Take minus the relative deviation from the predicted class's mean image; what raises the logit, over confidence.

    Args:
        readout: how confidence is read off the logits.
    """

    needs_train = True
    uses_head = True
    grid = {"readout": ("energy", "msp", "max_logit")}

    readout: str = "energy"

    def __post_init__(self) -> None:
        check_choice(self, "readout", READOUTS)

    def learn(self, head: Head, train: Activations | None, val: Activations | None) -> None:
        assert train is not None
        predicted = train.logits.argmax(dim=1)
        features = train.features.double()
        sums = torch.zeros(head.classes, head.width, dtype=torch.double, device=features.device)
        sums.index_add_(0, predicted, features)
        counts = torch.bincount(predicted, minlength=head.classes).unsqueeze(1)
        # Images are grouped by predicted class, not by label; a class that no image was taken for has the mean of all.
        self.means_ = torch.where(counts > 0, sums / counts.clamp(min=1), features.mean(dim=0)).float()
        self.signs_ = head.weight.sign()
        self.confidence_ = READOUTS[self.readout](train.logits).double().mean().float().clamp(min=LEAST)

    def rate(self, acts: Activations) -> Tensor:
        predicted = acts.logits.argmax(dim=1)
        # Above zero: what raises the logit of the predicted class. Below: what lowers it.
        effect = (acts.features - self.means_[predicted]) * self.signs_[predicted]
        size = acts.features.abs().sum(dim=1).clamp(min=1e-12)
        raising, lowering = effect.clamp(min=0).sum(dim=1) / size, (-effect).clamp(min=0).sum(dim=1) / size
        confidence = READOUTS[self.readout](acts.logits).clamp(min=LEAST)
        return -(raising / confidence + lowering / self.confidence_)

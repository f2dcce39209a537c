"""CADRef -- Ling et al., "CADRef: Robust Out-of-Distribution Detection via Class-Aware Decoupled Relative Feature Leveraging", CVPR 2025"""

from dataclasses import dataclass

import torch
from torch import Tensor

from idness.core.options import one_of
from idness.core.types import Activations, Head
from idness.detectors.detector import Detector
from idness.detectors.gaussian import Moments
from idness.detectors.readouts import READOUTS

LEAST = 1e-6
"""Minimum confidence: the energy of uncertain images can be negative, which would reverse the sign of the error."""


@dataclass(kw_only=True)
class CADRef(Detector):
    """Negative relative deviation from the predicted class's mean; deviations that raise the logit are divided by confidence.

    Args:
        readout: readout of the logits that measures confidence.
    """

    formula = (
        r"-\frac{1}{\lVert a \rVert_1} \left(\frac{\sum_j \max(0, e_j)}{S(z)} "
        r"+ \frac{\sum_j \max(0, -e_j)}{\operatorname{mean} S}\right), \quad "
        r"e = (a - \mu_{\hat y}) \odot \operatorname{sign} w_{\hat y}"
    )
    assumes = "ID images are near the mean of images with the same predicted class"
    needs_train = uses_head = True
    grid = {"readout": ("energy", "msp", "max_logit")}

    readout: str = one_of("energy", "msp", "max_logit")

    def learn(self, head: Head, train: Activations, val: Activations) -> None:
        # Images are grouped by predicted class, not by label; a class that is never predicted gets the mean of all.
        taken = Moments.of(train.features, train.logits.argmax(dim=1), head.classes)
        self.means_ = torch.where(taken.counts.unsqueeze(1) > 0, taken.means, taken.mean).float()
        self.signs_ = head.weight.sign()
        self.confidence_ = READOUTS[self.readout](train.logits).double().mean().float().clamp(min=LEAST)

    def rate(self, acts: Activations) -> Tensor:
        predicted = acts.logits.argmax(dim=1)
        # Positive effects raise the logit of the predicted class, negative ones lower it.
        effect = (acts.features - self.means_[predicted]) * self.signs_[predicted]
        size = acts.features.abs().sum(dim=1).clamp(min=1e-12)
        raising, lowering = effect.clamp(min=0).sum(dim=1) / size, (-effect).clamp(min=0).sum(dim=1) / size
        confidence = READOUTS[self.readout](acts.logits).clamp(min=LEAST)
        return -(raising / confidence + lowering / self.confidence_)

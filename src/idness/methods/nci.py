"""NCI -- Liu and Qin, "Detecting Out-of-Distribution Through the Lens of Neural Collapse", CVPR 2025."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from idness.core.checks import positive
from idness.core.types import Activations, Head
from idness.detectors.detector import Detector
from idness.detectors.kernels import lengths
from idness.detectors.moments import mean_features


@dataclass(kw_only=True)
class NCI(Detector):
    """Take how far centred features point along the predicted class's weights, plus their size.

    Args:
        alpha: weight of the size, the sum of absolute features; wide networks want a smaller one. The authors search it.
    """

    formula = r"\frac{\langle w_{\hat y},\, a - \mu \rangle}{\lVert a - \mu \rVert} + \alpha \lVert a \rVert_1"
    assumes = "ID features gather around the weights of their class"
    needs_train = True
    uses_head = True
    grid = {"alpha": (0.0001, 0.001, 0.01, 0.1)}

    # OpenOOD sets 0.0001, at which the size hardly counts, and searches from there.
    alpha: float = positive(0.001)

    def learn(self, head: Head, train: Activations, val: Activations) -> None:
        centre = mean_features(train)
        self.centre_ = centre.float()
        self.shift_ = (head.offset.double() + head.weight.double() @ centre).float()

    def rate(self, acts: Activations) -> Tensor:
        # <w_c, a - m> is the logit z_c less b_c + <w_c, m>: no product with the weights is needed again.
        predicted = acts.logits.argmax(dim=1, keepdim=True)
        along = (acts.logits - self.shift_).gather(1, predicted).squeeze(1)
        length = lengths(acts.features - self.centre_).clamp(min=1e-12)
        return along / length + self.alpha * acts.features.abs().sum(dim=1)

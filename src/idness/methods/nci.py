"""NCI -- Liu and Qin, "Detecting Out-of-Distribution Through the Lens of Neural Collapse", CVPR 2025."""

from dataclasses import dataclass

from torch import Tensor

from idness.core.options import positive
from idness.core.types import Activations, Head
from idness.detectors.detector import Detector
from idness.detectors.gaussian import mean_features
from idness.detectors.kernels import lengths


@dataclass(kw_only=True)
class NCI(Detector):
    """Projection of centred unit features on the weights of the predicted class, plus the weighted L1 norm of the features.

    Args:
        alpha: weight of the L1 norm; use a smaller one for wide networks. The authors tune it.
    """

    formula = r"\frac{\langle w_{\hat y},\, a - \mu \rangle}{\lVert a - \mu \rVert} + \alpha \lVert a \rVert_1"
    assumes = "ID features cluster around the weights of their class"
    needs_train = uses_head = True
    grid = {"alpha": (0.0001, 0.001, 0.01, 0.1)}

    # OpenOOD starts its search at 0.0001, at which the norm has almost no effect.
    alpha: float = positive(0.001)

    def learn(self, head: Head, train: Activations, val: Activations) -> None:
        centre = mean_features(train)
        self.centre_ = centre.float()
        self.shift_ = (head.offset.double() + head.weight.double() @ centre).float()

    def rate(self, acts: Activations) -> Tensor:
        # <w_c, a - m> = z_c - b_c - <w_c, m>, so no second product with the weights is needed.
        predicted = acts.logits.argmax(dim=1, keepdim=True)
        along = (acts.logits - self.shift_).gather(1, predicted).squeeze(1)
        length = lengths(acts.features - self.centre_).clamp(min=1e-12)
        return along / length + self.alpha * acts.features.abs().sum(dim=1)

"""ViM -- Wang et al., "ViM: Out-Of-Distribution with Virtual-logit Matching", CVPR 2022."""

from dataclasses import dataclass

from torch import Tensor

from idness.core.types import Activations, Head
from idness.detectors.readouts import energy
from idness.methods.residual import Residual


@dataclass(kw_only=True)
class ViM(Residual):
    """Energy minus the scaled length of the features outside the principal space of training images.

    Args:
        share: size of the principal space in percent of all directions; the default is close to the authors' and
            OpenOOD's (1,000 of 2,048, 256 of 512).
    """

    formula = (
        r"E(z) - \alpha \lVert P^{\perp} (a - u) \rVert, \quad "
        r"\alpha = \frac{\lvert \operatorname{mean} \max_c z_c \rvert}{\operatorname{mean} \lVert P^{\perp} (a - u) \rVert}, \quad "
        r"u = -W^{+} b"
    )
    assumes = "ID features lie in a subspace and have large logits"

    def learn(self, head: Head, train: Activations, val: Activations) -> None:
        super().learn(head, train, val)
        # The paper uses the training images. If there are fewer of them than directions, they have almost no residual and
        # all other images seem far away, so validation images are preferred. The absolute value keeps the penalty positive.
        largest = val.logits.double().amax(dim=1).mean().abs()
        self.alpha_ = largest / self.residual(val).mean().clamp(min=1e-12)

    def rate(self, acts: Activations) -> Tensor:
        return (energy(acts.logits) - self.alpha_ * self.residual(acts)).float()

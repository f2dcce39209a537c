"""ODIN -- Liang et al., "Enhancing The Reliability of Out-of-distribution Image Detection in Neural Networks", ICLR 2018."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from idness.core.options import positive
from idness.core.types import Activations
from idness.detectors.detector import InputEdit, input_gradient
from idness.detectors.readouts import msp


@dataclass(kw_only=True)
class ODIN(InputEdit):
    """Largest softmax probability at a high temperature, after a small step of the image towards its predicted class.

    ID images gain more confidence from the step than OOD images.

    Args:
        temperature: divisor of the logits, for the step and for the score.
        eps: step size in the network's normalized input. The paper's best value on CIFAR-10 is 0.0014 for pixels in
            [0, 1]; divided by the standard deviation of the normalization, about 1/4, it is the default here.
    """

    formula = (
        r"\max_c \operatorname{softmax}(z(x') / T)_c, \quad "
        r"x' = x + \varepsilon \operatorname{sign} \nabla_x \log p_{\hat y}"
    )
    assumes = "ID images gain more confidence from a small step than OOD images"
    other = {"temperature": 1.0, "eps": 0.5}
    changed_by = ("temperature", "eps")

    temperature: float = positive(1000.0)
    eps: float = positive(0.0056)

    def perturb(self, network: Callable[[Tensor], tuple[Tensor, Tensor]], images: Tensor) -> Tensor:
        def confidence(inputs: Tensor) -> Tensor:
            return (network(inputs)[1] / self.temperature).log_softmax(dim=1).amax(dim=1)

        # The public code treats a gradient of zero as positive; in the paper's formula its sign is zero.
        return images + self.eps * input_gradient(confidence, images).sign()

    def rate(self, acts: Activations) -> Tensor:
        assert acts.edited is not None
        return msp(acts.edited.logits / self.temperature)

"""ODIN -- Liang et al., "Enhancing The Reliability of Out-of-distribution Image Detection in Neural Networks", ICLR 2018."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from idness.core.checks import positive
from idness.core.types import Activations
from idness.detectors.input_edit import InputEdit, Pass, input_gradient
from idness.detectors.readouts import msp


@dataclass(kw_only=True)
class ODIN(InputEdit):
    """Move each image a little towards its predicted class, then take the largest softmax probability at a high temperature.

    Images that the network knows gain more from the move than others.

    Args:
        temperature: what logits are divided by, for the move and for the score.
        eps: how far each value of the network's input moves. The paper counts in pixels of [0, 1], where its best value on
            CIFAR-10 is 0.0014; its code and OpenOOD's divide that by the standard deviation of the normalisation, about a
            quarter, and the default here is the result.
    """

    formula = (
        r"\max_c \operatorname{softmax}(z(x') / T)_c, \quad "
        r"x' = x + \varepsilon \operatorname{sign} \nabla_x \log p_{\hat y}"
    )
    assumes = "ID images gain more certainty from a small step than OOD images"
    other = {"temperature": 1.0, "eps": 0.5}
    changed_by = ("temperature", "eps")

    temperature: float = positive(1000.0)
    eps: float = positive(0.0056)

    def perturb(self, network: Pass, images: Tensor) -> Tensor:
        def confidence(inputs: Tensor) -> Tensor:
            return (network(inputs)[1] / self.temperature).log_softmax(dim=1).amax(dim=1)

        # The code of both takes a gradient of zero for positive; by the paper's formula its sign is zero.
        return images + self.eps * input_gradient(confidence, images).sign()

    def rate(self, acts: Activations) -> Tensor:
        assert acts.edited is not None
        return msp(acts.edited.logits / self.temperature)

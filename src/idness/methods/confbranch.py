"""ConfBranch -- DeVries & Taylor, "Learning Confidence for Out-of-Distribution Detection in Neural Networks", 2018."""

from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from idness.core.errors import OptionError
from idness.core.types import Activations, Head
from idness.detectors.detector import Detector

FILE, WEIGHT, BIAS = "method.safetensors", "branch.weight", "branch.bias"
"""File of a training run, and the names of the tensors of the second head in it."""


@dataclass(kw_only=True)
class ConfBranch(Detector):
    """Confidence logit of a second head that was trained with the network.

    Args:
        run: folder of `idness train --method confbranch` that trained the network.
    """

    formula = r"w_c^\top a + b_c"
    assumes = "the network was trained by ConfBranch, which lowers its confidence on errors"
    of_run = uses_head = True

    run: str = ""

    def learn(self, head: Head, train: Activations, val: Activations) -> None:
        try:
            found: dict[str, Tensor] = load_file(Path(self.run) / FILE)
            self.weight_, self.bias_ = found[WEIGHT].float(), found[BIAS].float()
        except (OSError, SafetensorError, KeyError) as error:
            raise OptionError(
                f"ConfBranch: run must be a folder of `idness train --method confbranch` with {FILE}, got {self.run!r}"
            ) from error
        if self.weight_.shape != (1, head.width):
            raise OptionError(
                f"ConfBranch: run must belong to this network with {head.width} features, got {self.weight_.shape[1]}"
            )

    def rate(self, acts: Activations) -> Tensor:
        # The paper's sigmoid would not change the order, except for scores that it rounds to 1.
        return (acts.features @ self.weight_.T + self.bias_)[:, 0]

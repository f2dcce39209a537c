"""DICE -- Sun and Li, "DICE: Leveraging Sparsification for Out-of-Distribution Detection", ECCV 2022."""

from dataclasses import dataclass, replace

import torch

from idness.core.options import percent
from idness.core.types import Activations, Head
from idness.detectors.detector import Enhancer
from idness.detectors.gaussian import mean_features
from idness.detectors.kernels import percentile_of


@dataclass(kw_only=True)
class DICE(Enhancer):
    """Sparsification of the head to the weights with the largest mean contribution on training images.

    Args:
        percentile: percentage of all C x D weights that are set to zero.
    """

    formula = r"E((M \odot W) a + b), \quad M_{cj} = [\mu_j W_{cj} > P_p(\mu \odot W)]"
    assumes = "few weights carry a class; OOD images activate the others"
    needs_train = True
    grid = {"percentile": (10.0, 30.0, 50.0, 70.0, 90.0)}

    percentile: float = percent(90.0)

    def learn(self, head: Head, train: Activations, val: Activations) -> None:
        contribution = mean_features(train).float() * head.weight
        limit = percentile_of(contribution, self.percentile)
        self.weight_ = torch.where(contribution > limit, head.weight, 0.0)

    def edit(self, head: Head) -> Head:
        return replace(head, weight=self.weight_)

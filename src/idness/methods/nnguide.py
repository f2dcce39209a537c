"""NNGuide -- Park et al., "Nearest Neighbor Guidance for Out-of-Distribution Detection", ICCV 2023."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from torch import Tensor
from torch.nn.functional import normalize

from idness.core.checks import check_count, check_neighbours
from idness.core.types import Activations, Head
from idness.detectors.detector import Detector
from idness.detectors.kernels import mean_largest_products
from idness.detectors.readouts import energy


@dataclass(kw_only=True)
class NNGuide(Detector):
    """Multiply the energy by the mean similarity to the nearest training images, each weighted by its own energy.

    All training images serve; the authors draw 1 to 10 percent of them to save time.

    Args:
        k: how many of the nearest training images count.
    """

    needs_train = True
    grid = {"k": (1, 5, 10, 50, 100, 200)}

    k: int = 10

    def __post_init__(self) -> None:
        check_count(self, "k")

    @classmethod
    def learn_many(
        cls, detectors: Sequence[Self], head: Head, train: Activations | None, val: Activations | None
    ) -> None:
        assert train is not None
        bank = normalize(train.features, dim=1, eps=1e-10) * energy(train.logits).unsqueeze(1)
        for detector in detectors:
            check_neighbours(detector, "k", len(bank))
            detector.bank_ = bank

    @classmethod
    def rate_many(cls, detectors: Sequence[Self], acts: Activations) -> list[Tensor]:
        # As in the authors' code, the nearest are those of the largest weighted similarity.
        queries = normalize(acts.features, dim=1, eps=1e-10)
        guidances = mean_largest_products(queries, detectors[0].bank_, [detector.k for detector in detectors])
        confidence = energy(acts.logits)
        return [confidence * guidance for guidance in guidances]

"""NNGuide -- Park et al., "Nearest Neighbor Guidance for Out-of-Distribution Detection", ICCV 2023."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from idness.core.options import check_at_most_images, count
from idness.core.types import Activations, Head
from idness.detectors.detector import Detector
from idness.detectors.kernels import largest_products, unit
from idness.detectors.readouts import energy


@dataclass(kw_only=True)
class NNGuide(Detector):
    """Energy times the mean similarity to the nearest training images, each weighted by its own energy.

    All training images are used; the authors sample 1 to 10 percent of them.

    Args:
        k: number of nearest training images.
    """

    formula = r"E(z) \cdot \frac{1}{k} \sum_{i \in kNN} E(z_i)\, \langle \bar a, \bar a_i \rangle"
    assumes = "ID images have confident training images in a similar direction"
    needs_train = True
    grid = {"k": (1, 5, 10, 50, 100, 200)}

    k: int = count(10)

    @classmethod
    def learn_many(cls, detectors: Sequence[Self], head: Head, train: Activations, val: Activations) -> None:
        bank = unit(train.features) * energy(train.logits).unsqueeze(1)
        for detector in detectors:
            check_at_most_images(detector, "k", len(bank))
            detector.bank_ = bank

    @classmethod
    def rate_many(cls, detectors: Sequence[Self], acts: Activations) -> list[Tensor]:
        # As in the authors' code, the nearest are those with the largest weighted similarity.
        ks = [detector.k for detector in detectors]
        guidances = largest_products(unit(acts.features), detectors[0].bank_, ks, lambda largest: largest.mean(dim=1))
        confidence = energy(acts.logits)
        return [confidence * guidance for guidance in guidances]

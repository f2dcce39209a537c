"""KNN -- Sun et al., "Out-of-Distribution Detection with Deep Nearest Neighbors", ICML 2022."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from idness.core.options import check_at_most_images, count
from idness.core.types import Activations, Head
from idness.detectors.detector import Detector
from idness.detectors.kernels import largest_products, unit


@dataclass(kw_only=True)
class KNN(Detector):
    """Negative squared distance to the k-th nearest training image, on features scaled to length 1.

    Args:
        k: rank of the neighbour; use a smaller one for fewer training images.
    """

    formula = r"-\lVert \bar a - \bar a_{(k)} \rVert^2"
    assumes = "ID images have training images in a similar direction"
    needs_train = takes_labels = True
    grid = {"k": (1, 5, 10, 50, 100, 200, 500, 1000)}

    k: int = count(50)

    def learn(self, head: Head, train: Activations, val: Activations) -> None:
        check_at_most_images(self, "k", len(train))
        self.bank_ = unit(train.features)

    @classmethod
    def rate_many(cls, detectors: Sequence[Self], acts: Activations) -> list[Tensor]:
        # For unit vectors, |x - y|^2 = 2 - 2 x y: the nearest has the largest product.
        ks = [detector.k for detector in detectors]
        products = largest_products(unit(acts.features), detectors[0].bank_, ks, lambda largest: largest[:, 0])
        return [2 * product - 2 for product in products]

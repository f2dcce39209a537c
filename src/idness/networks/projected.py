"""The network that CIDER trains: a classifier seen through a projection to the unit sphere."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn import functional as F

from idness.networks.final_layer import entering, final_linear

BACKBONE, FIRST, LAST = "backbone.", "projection.0.weight", "fc.weight"
"""How the names of its weights begin, and two of them that no other network has together."""


class ProjectedNetwork(nn.Module):
    """Shows a network through its projection: features of length 1, and logits by the prototypes.

    KNN on its features is CIDER's detector.
    """

    def __init__(self, backbone: nn.Module, final: nn.Linear, classes: int, width: int) -> None:
        super().__init__()
        self.backbone = backbone
        self._final = [final]  # in a list: not a submodule twice
        inner = final.in_features
        self.projection = nn.Sequential(nn.Linear(inner, inner), nn.ReLU(), nn.Linear(inner, width))
        self.fc = nn.Linear(width, classes, bias=False)

    def embed(self, images: Tensor) -> Tensor:
        """Compute the normalised projection of each image."""
        with entering(self._final[0]) as features:
            self.backbone(images)
        return F.normalize(self.projection(features[-1]).float(), dim=1)

    def forward(self, images: Tensor) -> Tensor:
        """Compute the logits: similarity to each prototype, over the temperature."""
        logits: Tensor = self.fc(self.embed(images))
        return logits


def projected(backbone: nn.Module, classes: int, width: int = 128, layer: str | None = None) -> ProjectedNetwork:
    """Make the network that CIDER trains and whose weights it writes, around any classifier."""
    return ProjectedNetwork(backbone, final_linear(backbone, layer)[2], classes, width)


def is_projected(state: Mapping[str, Tensor]) -> bool:
    """Tell whether weights are of such a network."""
    return {FIRST, LAST} <= state.keys() and any(name.startswith(BACKBONE) for name in state)

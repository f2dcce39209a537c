"""CIDER -- Ming et al., "How to Exploit Hyperspherical Embeddings for Out-of-Distribution Detection?", ICLR 2023."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from idness.core.options import positive
from idness.networks.architectures import ProjectedNetwork
from idness.networks.split import final_linear
from idness.training.objective import Objective, Outcome, method

AT_ONCE = 64
"""Images per pass before the first step; 512 images of ImageNet's size would take gigabytes."""


def update_prototypes(prototypes: Tensor, embeddings: Tensor, labels: Tensor, momentum: float) -> Tensor:
    """Return the prototypes, each moved towards the images of its class on the unit sphere, one image after another.

    Gradients flow into the embeddings. Classes are independent, so the n-th images of all classes are processed together.
    """
    same = labels[:, None] == labels[None, :]
    turn = same.tril(-1).sum(1)  # number of earlier images of the same class
    for n in range(int(turn.max()) + 1):
        now = turn == n
        moved = F.normalize(momentum * prototypes[labels[now]] + (1 - momentum) * embeddings[now], dim=1)
        prototypes = prototypes.index_copy(0, labels[now], moved)
    return prototypes


def dispersion_loss(prototypes: Tensor, temperature: float) -> Tensor:
    """Return the loss that pushes prototypes apart."""
    count = len(prototypes)
    similar = prototypes @ prototypes.T / temperature
    others = similar.masked_fill(torch.eye(count, dtype=torch.bool, device=similar.device), -torch.inf)
    return (others.logsumexp(1) - torch.tensor(float(count - 1)).log()).mean()


def compactness_loss(embeddings: Tensor, prototypes: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Return the loss that pulls images towards their own prototype."""
    return F.cross_entropy(embeddings @ prototypes.T / temperature, labels)


@method("cider")
@dataclass(eq=False, repr=False)
class Cider(Objective):
    """Losses that make embeddings on the unit sphere compact within a class and far apart between classes.

    The result is a `ProjectedNetwork`, to be used with `knn`.
    """

    recipe = {"epochs": 500, "lr": 0.5, "weight_decay": 1e-4, "batch_size": 512, "nesterov": False, "warmup": 10.0}

    temperature: float = positive(0.1)
    momentum: float = 0.95
    weight: float = 2.0
    width: int = 128
    layer: str | None = None
    prototypes: Tensor = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        final = final_linear(self.model, self.layer)[2]
        network = ProjectedNetwork(self.model, final, self.classes, self.width)
        self._frozen = [p for p in final.parameters() if p.requires_grad]
        final.requires_grad_(False)  # the prototypes replace the classifier
        network.fc.requires_grad_(False)
        self.model, self._network = network, [network]  # in a list, to register it only once
        self.register_buffer("prototypes", F.normalize(torch.randn(self.classes, self.width), dim=1))

    @torch.no_grad()
    def prepare(self, images: Tensor, labels: Tensor) -> None:
        """Initialise each prototype with the mean of its class's embeddings."""
        self._network[0].eval()
        embeddings = torch.cat([self._network[0].embed(self.normalise(part)) for part in torch.split(images, AT_ONCE)])
        self._network[0].train()
        for label in sorted(set(labels.tolist())):
            self.prototypes[label] = F.normalize(embeddings[labels == label].mean(0), dim=0)

    def forward(self, images: Tensor, labels: Tensor) -> Outcome:
        """Return the loss of one batch, and update the prototypes."""
        embeddings = self._network[0].embed(self.normalise(images))
        moved = update_prototypes(self.prototypes, embeddings, labels, self.momentum)
        dispersion = dispersion_loss(moved, self.temperature)
        fixed = moved.detach()
        compactness = compactness_loss(embeddings, fixed, labels, self.temperature)
        if self.training:
            self.prototypes.copy_(fixed)  # in place: DDP holds a reference to this tensor
        return Outcome(self.weight * dispersion + compactness, embeddings.detach() @ fixed.T)

    def after_step(self) -> None:
        """Set the network's classifier to the prototypes."""
        with torch.no_grad():
            self._network[0].fc.weight.copy_(self.prototypes / self.temperature)

    def finish(self) -> nn.Module:
        """Return the network with the projection."""
        self.after_step()
        for parameter in self._frozen:
            parameter.requires_grad_(True)
        return self._network[0]

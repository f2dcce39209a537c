"""WeiPer+KLD -- Granz et al., "WeiPer: OOD Detection using Weight Perturbations of Class Projections", NeurIPS 2024."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import linear

from idness.core.checks import count, positive
from idness.core.types import Activations, Head
from idness.detectors.detector import Detector
from idness.detectors.histograms import divergence, shares
from idness.detectors.kernels import row_blocks, unit

BINS = 100  # the authors take 80 for a vision transformer
EXACT = 5_000  # perturbed logits of an image, below which they are computed in float64


@dataclass(kw_only=True)
class WeiPer(Detector):
    """Compare histograms of an image's features and of its logits under perturbed heads with the usual ones.

    Score: -D(features) - lambda_1 D(perturbed logits) + lambda_2 (mean largest probability of the perturbed heads).
    D is the symmetric divergence from the mean histogram of training images. Defaults are the authors' for CIFAR-10.

    Args:
        delta: length of a perturbation, as a multiple of the length of the class's weights.
        repeats: how many perturbed heads.
        most: perturbed logits of an image; where they are enough, with many classes, there are fewer perturbed heads.
        s_1: over how many bins an image's histogram of features is averaged.
        s_2: the same for perturbed logits.
        lambda_1: weight of the divergence of perturbed logits.
        lambda_2: weight of the mean largest probability.
    """

    formula = (
        r"-D(a) - \lambda_1 D(\tilde z) + \lambda_2 \operatorname{mean} \max_c \operatorname{softmax}(\tilde z)_c, \quad "
        r"\tilde z = \tilde W a + b"
    )
    assumes = "features and perturbed logits of ID images have a usual histogram"
    needs_train = uses_head = True
    grid = {"delta": (1.8, 2.4), "s_1": (4, 40), "s_2": (15, 40), "lambda_1": (0.1, 2.5), "lambda_2": (0.1, 1.0)}
    other = {"repeats": 10, "most": 50}

    delta: float = positive(1.8)
    repeats: int = count(100)
    most: int = count(10_000)
    s_1: int = count(4)
    s_2: int = count(15)
    lambda_1: float = positive(2.5)
    lambda_2: float = positive(0.1)

    @classmethod
    def learn_many(cls, detectors: Sequence[Self], head: Head, train: Activations, val: Activations) -> None:
        first: dict[tuple[float, int, int], Self] = {}
        for detector in detectors:
            learner = first.setdefault((detector.delta, detector.repeats, detector.most), detector)
            if learner is detector:
                detector.learn(head, train, val)
            vars(detector).update({name: value for name, value in vars(learner).items() if name.endswith("_")})

    def learn(self, head: Head, train: Activations, val: Activations) -> None:
        heads = min(self.repeats, max(1, self.most // head.classes))
        # Rounding differs from batch to batch: it must not move a value to another bin, unless there are thousands.
        kind = torch.double if heads * head.classes < EXACT else torch.float32
        plain = head.weight.to(kind).repeat(heads, 1)
        noise = unit(torch.randn(plain.shape, generator=torch.Generator().manual_seed(0))).to(plain)
        self.weights_ = plain + self.delta * plain.norm(dim=1, keepdim=True) * noise
        self.biases_ = head.offset.to(kind).repeat(heads)
        # One range of values for all features, and one for all perturbed logits.
        parts = row_blocks(train.features, len(plain))
        ends = [torch.stack(linear(part.to(kind), self.weights_, self.biases_).aminmax()) for part in parts]
        self.spans_ = torch.stack([torch.stack(v.to(kind).aminmax()) for v in (train.features, torch.cat(ends))])
        self.usual_ = self._measure(train.features, head.classes).mean(dim=0)

    @classmethod
    def rate_many(cls, detectors: Sequence[Self], acts: Activations) -> list[Tensor]:
        unlike = {(detector.delta, len(detector.weights_)): detector for detector in detectors}
        found = {key: one._measure(acts.features, one.head_.classes) for key, one in unlike.items()}
        return [detector._combine(found[detector.delta, len(detector.weights_)]) for detector in detectors]

    def _measure(self, features: Tensor, classes: int) -> Tensor:
        """Compute what the score is made of: two histograms and the mean largest probability (N, 2 B + 1)."""
        rows = []
        for part in row_blocks(features, len(self.weights_)):
            logits = linear(values := part.to(self.weights_), self.weights_, self.biases_)
            heads = logits.reshape(-1, len(self.biases_) // classes, classes)
            sure = (heads.amax(dim=2) - heads.logsumexp(dim=2)).exp().mean(dim=1, keepdim=True)
            rows.append(torch.cat([*map(shares, (values, logits), self.spans_, (BINS, BINS)), sure], dim=1))
        return torch.cat(rows)

    def _combine(self, measures: Tensor) -> Tensor:
        # As in the authors' code, an image's histogram is smoothed, the mean is not; the floors are theirs too.
        far = divergence(self.usual_[:BINS], measures[:, :BINS], self.s_1, floor=0.01)
        perturbed = divergence(self.usual_[BINS:-1], measures[:, BINS:-1], self.s_2, floor=0.025)
        return (measures[:, -1] * self.lambda_2 - far - perturbed * self.lambda_1).float()

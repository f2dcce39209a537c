"""WeiPer+KLD -- Granz et al., "WeiPer: OOD Detection using Weight Perturbations of Class Projections", NeurIPS 2024."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from idness.core.checks import count, positive
from idness.core.types import Activations, Head
from idness.detectors.detector import Detector
from idness.detectors.histograms import divergence, shares
from idness.detectors.perturbing import Perturbed, PerturbedLogits, perturbed_logits, perturbed_weights
from idness.detectors.sharing import grouped

BINS = 100  # the authors take 80 for a vision transformer


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
        for group in grouped(detectors, lambda one: (one.repeats, one.most)):
            cls._learn(alike := {one.delta: one for one in group}, head, train.features)
            for one in group:
                vars(one).update({name: value for name, value in vars(alike[one.delta]).items() if name.endswith("_")})

    @classmethod
    def _learn(cls, alike: Mapping[float, Self], head: Head, features: Tensor) -> None:
        [one, *_] = alike.values()  # they differ in delta alone
        weights = perturbed_weights(head, one.repeats, one.most, [*alike])
        # One range of values for all features, and one for all perturbed logits.
        parts = PerturbedLogits(features, head, weights[0], [*alike])
        found = [[torch.stack(each.aminmax()) for each in logits] for _, logits in parts]
        for one, own, ends in zip(alike.values(), weights, zip(*found, strict=True), strict=True):
            one.weights_ = own
            one.spans_ = torch.stack([torch.stack(v.to(own).aminmax()) for v in (features, torch.cat(ends))])
        for delta, measures in cls._measured(alike, parts).items():
            alike[delta].usual_ = measures.mean(dim=0)

    @classmethod
    def rate_many(cls, detectors: Sequence[Self], acts: Activations) -> list[Tensor]:
        found = {}
        for group in grouped(detectors, lambda one: len(one.weights_)):
            alike, first = {one.delta: one for one in group}, group[0]
            parts = perturbed_logits(acts.features, first.head_, first.weights_, [*alike])
            found[len(first.weights_)] = cls._measured(alike, parts)
        return [one._combine(found[len(one.weights_)][one.delta]) for one in detectors]

    @classmethod
    def _measured(cls, alike: Mapping[float, Self], parts: Iterable[Perturbed]) -> dict[float, Tensor]:
        """Compute what each score is made of: two histograms and the mean largest probability (N, 2 B + 1)."""
        rows: dict[float, list[Tensor]] = {delta: [] for delta in alike}
        for values, logits in parts:
            for (delta, one), each in zip(alike.items(), logits, strict=True):
                sure = (each.amax(dim=2) - each.logsumexp(dim=2)).exp().mean(dim=1, keepdim=True)
                spread = map(shares, (values, each.flatten(1)), one.spans_, (BINS, BINS))
                rows[delta].append(torch.cat([*spread, sure], dim=1))
        return {delta: torch.cat(made) for delta, made in rows.items()}

    def _combine(self, measures: Tensor) -> Tensor:
        # As in the authors' code, an image's histogram is smoothed, the mean is not; the floors are theirs too.
        far = divergence(self.usual_[:BINS], measures[:, :BINS], self.s_1, floor=0.01)
        perturbed = divergence(self.usual_[BINS:-1], measures[:, BINS:-1], self.s_2, floor=0.025)
        return (measures[:, -1] * self.lambda_2 - far - perturbed * self.lambda_1).float()

"""Chains of edits, such as DICE+ReAct (Sun and Li, ECCV 2022)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from idness.core.errors import OptionError
from idness.core.types import Activations, Head
from idness.detectors.detector import Detector, Enhancer, fit_many
from idness.detectors.registry import detectors_in


@dataclass(kw_only=True)
class Chain(Enhancer):
    """Sequence of edits of features and head, each fitted on the output of the previous ones.

    Args:
        steps: detectors that edit features or head, their configurations, or text such as
            `react(percentile=90)+dice(percentile=10)`.
    """

    formula = r"E(W' s_n(\dots s_1(a)) + b)"
    assumes = "what its steps assume"
    needs_train = True
    needs_val = False
    grid = {
        "steps": tuple(
            f"react(percentile={clip})+dice(percentile={cut})"
            for clip in (85, 90, 95, 99)
            for cut in (10, 30, 50, 70, 90)
        )
    }

    steps: Any = "react(percentile=90)+dice(percentile=10)"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.steps = detectors_in(self, "steps")
        for step in self.steps:
            if not isinstance(step, Enhancer) or isinstance(step, Chain):
                raise OptionError(f"Chain: a step must edit features or head (react, dice, ash, scale), got {step!r}")

    def options(self) -> dict[str, Any]:
        return {"readout": self.readout, "steps": "+".join(step.label() for step in self.steps)}

    def inner(self) -> Iterator[tuple[str, Detector]]:
        return ((f"step{index}", step) for index, step in enumerate(self.steps))

    @classmethod
    def learn_many(cls, detectors: Sequence[Self], head: Head, train: Activations, val: Activations) -> None:
        _learn_steps([detector.steps for detector in detectors], head, train, val)

    def shape(self, features: Tensor) -> Tensor:
        for step in self.steps:
            features = step.shape(features)
        return features

    def edit(self, head: Head) -> Head:
        for step in self.steps:
            head = step.edit(head)
        return head


def _learn_steps(chains: Sequence[Sequence[Enhancer]], head: Head, train: Activations, val: Activations) -> None:
    """Fit each step on the output of the previous ones; chains with the same first step share it."""
    alike: dict[str, list[Sequence[Enhancer]]] = {}
    for chain in chains:
        alike.setdefault(chain[0].label(), []).append(chain)
    fit_many([chain[0] for chain in chains], head, train, val=val)
    for group in alike.values():
        step = group[0][0]
        if rest := [chain[1:] for chain in group if len(chain) > 1]:
            seen = _seen_after(step, head, train)
            _learn_steps(rest, step.edit(head), seen, seen if val is train else _seen_after(step, head, val))


def _seen_after(step: Enhancer, head: Head, acts: Activations) -> Activations:
    features = step.shape(acts.features)
    return Activations(features, step.edit(head)(features), acts.labels)

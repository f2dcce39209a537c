"""Recovers logits, features and head from what a network computes: which linear steps its output is made of, and how.

Most networks end in one linear layer. Others go on: a softmax, a temperature, the mean of several heads. What can be undone
exactly is: then logits are a linear function of features again, and the network's own output follows from them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from idness.core.errors import ModelError
from idness.core.types import Head
from idness.networks.answers import TOLERANCE, allowed, answers, as_rows, close
from idness.networks.watching import Step

VARIES = 1e-4
"""By how much outputs must differ between images, relative to their size, to tell a factor and a constant from them."""
MOST_PARTS = 64

ENDINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "": lambda logits: logits,
    "softmax": lambda logits: logits.softmax(dim=1),
    "log-softmax": lambda logits: logits.log_softmax(dim=1),
    "sigmoid": torch.sigmoid,
}
"""What networks do to their logits last, by name."""
UNDOINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "": lambda output: output,
    "softmax": lambda output: _centred(output.log()),
    "log-softmax": lambda output: output - output.mean(dim=1, keepdim=True),
    "sigmoid": torch.logit,
}
"""What undoes each, up to a constant of the image that changes no softmax."""


@dataclass(frozen=True)
class Part:
    """Names a linear step that the output is made of.

    Args:
        key: the layer, or the function.
        call: which of its steps, counted from the last one, which is -1.
        scale: the factor with which it enters.
    """

    key: str
    call: int = -1
    scale: float = 1.0

    def __str__(self) -> str:
        return self.key if self.call == -1 else f"{self.key}[{self.call}]"

    @staticmethod
    def parse(text: str) -> Part:
        """Read what `str` writes."""
        found = re.fullmatch(r"(.*)\[(-\d+)\]", text)
        return Part(text) if found is None else Part(found[1], int(found[2]))

    def among(self, steps: Sequence[Step]) -> Step | None:
        """Find it among the steps of a forward pass."""
        own = [step for step in steps if self.key in (step.layer, step.function)]
        return own[self.call] if len(own) >= -self.call else None


@dataclass(frozen=True, eq=False)
class Recipe:
    """Says how a network's output is made of linear steps.

    Args:
        parts: the steps, of which the logits are the sum.
        ending: what becomes of the logits, one of `ENDINGS`.
        offset: what is added to the logits, where the steps do not do so (C,).
        answer: where the output is in what the network returns, one of `answers`.
    """

    parts: tuple[Part, ...]
    ending: str = ""
    offset: Tensor | None = None
    answer: str = ""

    @property
    def layer(self) -> str:
        """The names of its parts."""
        return "+".join(map(str, self.parts))

    @property
    def plain(self) -> bool:
        """Whether the output of one step is the logits as they are."""
        return len(self.parts) == 1 and self.parts[0].scale == 1 and self.offset is None

    def describe(self) -> str:
        """Say what happens to the layers' outputs, in few words; nothing where they are the network's output."""
        said = []
        if len(self.parts) > 1:
            said.append(f"sum of {len(self.parts)}")
        if any(part.scale != 1 for part in self.parts):
            said.append(f"times {', '.join(f'{part.scale:.4g}' for part in self.parts[:4])}")
        if self.offset is not None:
            said.append("plus constants")
        return ", ".join([*said, self.ending] if self.ending else said)

    def wanted(self) -> dict[str, int]:
        """Give what to watch: each layer or function, and how many of its last steps."""
        found: dict[str, int] = {}
        for part in self.parts:
            found[part.key] = max(found.get(part.key, 0), -part.call)
        return found

    def steps(self, seen: Sequence[Step]) -> list[Step]:
        """Find the parts among the steps of a forward pass."""
        found = [part.among(seen) for part in self.parts]
        for part, step in zip(self.parts, found, strict=True):
            if step is None:
                raise ModelError(
                    f"SplitModel: the layer {str(part)!r} was not used for this batch; name the final layer with layer="
                )
        return [step for step in found if step is not None]

    def head(self, steps: Sequence[Step]) -> Head:
        """Give the head that makes these logits of these features."""
        scales = [part.scale for part in self.parts]
        weight = torch.cat([s * step.weight.detach().float() for s, step in zip(scales, steps, strict=True)], dim=1)
        bias = weight.new_zeros(len(weight))
        for scale, step in zip(scales, steps, strict=True):
            bias = bias if step.bias is None else bias + scale * step.bias.detach().float()
        return Head(weight.clone(), bias if self.offset is None else bias + self.offset.to(bias.device))

    def features(self, steps: Sequence[Step]) -> Tensor:
        """Give what entered the parts, side by side."""
        return steps[0].features if len(steps) == 1 else torch.cat([step.features for step in steps], dim=1)

    def logits(self, steps: Sequence[Step]) -> Tensor:
        """Give the sum of what came out of the parts, in float32."""
        total = None
        for part, step in zip(self.parts, steps, strict=True):
            made = step.logits
            made = made if part.scale == 1 else part.scale * made
            total = made if total is None else total + made
        assert total is not None
        return total if self.offset is None else total + self.offset.to(total.device)

    def explains(self, steps: Sequence[Step], output: Any) -> bool:
        """Tell whether the network's output follows from its steps; images that give NaN or Inf tell nothing."""
        found = answers(output, len(steps[0].output)).get(self.answer)
        if self.plain and not self.ending and found is steps[0].output and steps[0].kept:
            return True
        if found is None:
            return False
        return close(ENDINGS[self.ending](self.logits(steps)), as_rows(found), allowed(found, *steps))


def explain(steps: Sequence[Step], output: Any, key: str | None = None) -> Recipe | None:
    """Find how a network's output is made of its linear steps, the last ones first; none where they do not explain it.

    Args:
        steps: the steps of one forward pass.
        output: what the network returned.
        key: the names of the parts, as `Recipe.layer` gives them, where they are known.
    """
    found: dict[str, tuple[Recipe, list[Step]]] = {}
    fixed = None if key is None else [Part.parse(text) for text in key.split("+")]
    numbers = _numbered(steps)
    named = answers(output, len(steps[-1].output)) if steps else {}
    for name, tensor in named.items():
        rows = as_rows(tensor)
        usable = [(part, step) for part, step in numbers if step.shape == rows.shape]
        if fixed is not None:
            usable = [(part, step) for part in fixed if (step := part.among(steps)) is not None]
            usable = [(part, step) for part, step in usable if step.shape == rows.shape]
        recipe = _one(usable, rows) or _several(usable, rows)
        if recipe is not None:
            placed = Recipe(recipe.parts, recipe.ending, recipe.offset, name)
            if name == "logits":
                return placed
            found[name] = placed, placed.steps(steps)
        elif name == "logits" and fixed is None:
            return None  # what else there is may be anything
    return _chosen(found)


def _numbered(steps: Sequence[Step]) -> list[tuple[Part, Step]]:
    """Give each step with its name and its place from the end, the last step first."""
    seen: dict[str, int] = {}
    found = []
    for step in reversed(steps):
        for key in {step.key, step.function}:
            seen[key] = seen.get(key, 0) - 1
        found.append((Part(step.key, seen[step.key]), step))
    return found


def _chosen(found: dict[str, tuple[Recipe, list[Step]]]) -> Recipe | None:
    """Choose the logits among several outputs: not those from which others are computed, as features beside logits are."""
    widths = {name: sum(step.weight.shape[1] for step in steps) for name, (_, steps) in found.items()}
    classes = {name: steps[0].weight.shape[0] for name, (_, steps) in found.items()}
    ends = {name for name in found if not any(classes[name] == widths[other] for other in found if other != name)}
    heads = {found[name][0].layer: found[name][0] for name in reversed(found) if name in ends}
    if len(heads) > 1:
        listed = ", ".join(f"layer={layer!r}" for layer in reversed(heads))
        raise ModelError(f"SplitModel: the network returns the outputs of {len(heads)} heads; name one: {listed}")
    return next(iter(heads.values()), None)


def _one(usable: Sequence[tuple[Part, Step]], wanted: Tensor) -> Recipe | None:
    """Find one step that explains the output: as it is, or with a factor, or with a factor and constants."""
    for part, step in usable:
        if step.output is wanted and step.kept:
            return Recipe((part,))
    for ending, end in ENDINGS.items():
        for part, step in usable:
            if close(end(step.logits), wanted, allowed(wanted, step)):
                return Recipe((part,), ending)
    for fit in (_factor, _factor_and_constants):
        for ending, end in ENDINGS.items():
            target = _undone(ending, wanted)
            if target is None:
                continue
            for part, step in usable:
                made = step.logits.detach().double()
                scale, offset = fit(_centred(made) if "softmax" in ending else made, target)
                recovered = scale * made if offset is None else scale * made + offset
                if scale and close(end(recovered), wanted, allowed(wanted, step)):
                    constants = None if offset is None else offset.float()
                    return Recipe((Part(part.key, part.call, scale),), ending, constants)
    return None


def _several(usable: Sequence[tuple[Part, Step]], wanted: Tensor) -> Recipe | None:
    """Find a weighted sum of several steps that explains the output, as heads and networks that are averaged do."""
    usable = usable[:MOST_PARTS]
    if len(usable) < 2 or wanted.numel() < 2 * len(usable):
        return None
    for ending, end in ENDINGS.items():
        target = _undone(ending, wanted)
        if target is None or not _varies(target):
            continue
        made = [step.logits.detach().double() for _, step in usable]
        columns = torch.stack([(_centred(one) if "softmax" in ending else one).flatten() for one in made], dim=1)
        scales = torch.linalg.lstsq(columns.cpu(), target.flatten().cpu().unsqueeze(1), driver="gelsd").solution[:, 0]
        kept = [place for place, scale in enumerate(scales.tolist()) if abs(scale) > 1e-4 * float(scales.abs().max())]
        rounded = [_tidy(float(scales[place])) for place in kept]
        used = [usable[place][1] for place in kept]
        total = sum(scale * made[place] for scale, place in zip(rounded, kept, strict=True))
        if len(kept) > 1 and isinstance(total, Tensor) and close(end(total), wanted, allowed(wanted, *used)):
            pairs = zip(rounded, kept, strict=True)
            parts = [Part(usable[place][0].key, usable[place][0].call, scale) for scale, place in pairs]
            return Recipe(tuple(reversed(parts)), ending)
    return None


def _factor(made: Tensor, target: Tensor) -> tuple[float, None]:
    """Find the factor between a step's output and the network's; 0 where it cannot be told."""
    tells = _varies(target) if target.shape[1] == 1 else float(target.abs().max()) > 0
    return (_slope(made, target) if tells else 0.0), None


def _factor_and_constants(made: Tensor, target: Tensor) -> tuple[float, Tensor | None]:
    """Find the factor and one constant per class, from how outputs differ between images."""
    if not _varies(target) or (len(target) - 1) * target.shape[1] < 3:
        return 0.0, None
    centre, goal = made - made.mean(dim=0), target - target.mean(dim=0)
    scale = _slope(centre, goal)
    # What differs between images must be explained for itself: the constants alone explain all that does not.
    if float((scale * centre - goal).abs().max()) > 100 * TOLERANCE * float(goal.abs().max()):
        return 0.0, None
    return scale, (target - scale * made).mean(dim=0)


def _slope(made: Tensor, target: Tensor) -> float:
    size = float((made * made).sum())
    return _tidy(float((made * target).sum()) / size) if size > 0 else 0.0


def _tidy(scale: float) -> float:
    """Round a measured factor to the number that its author most likely wrote, where that is within rounding."""
    for simple in (float(f"{scale:.4g}"), 1 / float(f"{1 / scale:.4g}") if scale else 0.0):
        if abs(simple - scale) <= TOLERANCE * abs(scale):
            return simple
    return scale


def _varies(target: Tensor) -> bool:
    return float((target - target.mean(dim=0)).abs().max()) > VARIES * float(target.abs().max())


def _undone(ending: str, wanted: Tensor) -> Tensor | None:
    """Undo an ending; none where the output cannot be one of it."""
    target = UNDOINGS[ending](wanted.detach().double())
    return target if bool(torch.isfinite(target).all()) else None


def _centred(logits: Tensor) -> Tensor:
    return logits - logits.mean(dim=1, keepdim=True)

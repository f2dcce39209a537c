"""Finds a network's head: runs a copy of it once and explains its output by its linear steps.

Most networks end in one linear layer. Others go on: a softmax, a temperature, the mean of several heads. What can be undone
exactly is undone, so that the logits are a linear function of the features and the network's own output follows from them.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from idness.core.errors import ModelError
from idness.core.types import Head
from idness.networks.linear_steps import Step, is_function, is_linear, recorded
from idness.networks.modules import as_input, call, copied, inference

SIZES = (32, 224, 64, 96, 128, 256, 299, 384, 28)
"""Image sizes tried in this order if a network is probed without an example."""
FEW, MANY = 3, 16
"""Images that a network is probed with first, and if those are not enough to explain its output."""
MOST_PARTS = 64
TOLERANCE = 1e-5
"""Largest difference between the recovered and the real output, relative to the largest output of the image."""
TOLERANCES = {torch.float16: 2e-2, torch.bfloat16: 1e-1}
VARIES = 1e-4
"""Relative difference between the outputs of different images that is needed to fit a factor and constants."""

ENDINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "": lambda logits: logits,
    "softmax": lambda logits: logits.softmax(dim=1),
    "log-softmax": lambda logits: logits.log_softmax(dim=1),
    "sigmoid": torch.sigmoid,
}
"""Functions that networks apply to their logits, by name."""
_UNDOINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "": lambda output: output,
    "softmax": lambda output: _centred(output.log()),
    "log-softmax": lambda output: _centred(output),  # noqa: PLW0108  # defined below
    "sigmoid": torch.logit,
}


class NotProbedError(ModelError):
    """No input that was tried fits the network."""


@dataclass(frozen=True)
class Part:
    """A linear step that the output is made of: which of the calls of a layer or function, counted from the last (-1), and its factor."""

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
        """Return its step of a forward pass, or `None`."""
        own = [step for step in steps if self.key in (step.layer, step.function)]
        return own[self.call] if len(own) >= -self.call else None


def parts_of(layer: str) -> tuple[Part, ...]:
    """Read the names of layers whose logits are added, joined by `+`."""
    return tuple(Part.parse(text) for text in layer.split("+"))


@dataclass(frozen=True, eq=False)
class Recipe:
    """How a network's output is made of linear steps.

    Args:
        parts: the steps; the logits are their sum.
        ending: the function applied to the logits, one of `ENDINGS`.
        offset: constants added to the logits beside the steps' own biases (C,).
        answer: where the output is in the network's return value, one of `answers`.
    """

    parts: tuple[Part, ...]
    ending: str = ""
    offset: Tensor | None = None
    answer: str = ""

    @property
    def layer(self) -> str:
        """The names of its parts, joined by `+`."""
        return "+".join(map(str, self.parts))

    def describe(self) -> str:
        """Describe briefly what happens to the layers' outputs; empty if they are the network's output."""
        said = [f"sum of {len(self.parts)}"] if len(self.parts) > 1 else []
        if any(part.scale != 1 for part in self.parts):
            said.append(f"times {', '.join(f'{part.scale:.4g}' for part in self.parts[:4])}")
        if self.offset is not None:
            said.append("plus constants")
        return ", ".join([*said, self.ending] if self.ending else said)

    def wanted(self) -> dict[str, int]:
        """Return the layers and functions to record, and how many of the last calls of each."""
        found: dict[str, int] = {}
        for part in self.parts:
            found[part.key] = max(found.get(part.key, 0), -part.call)
        return found

    def steps(self, seen: Sequence[Step]) -> list[Step]:
        """Return its steps of a forward pass."""
        found = [(part, part.among(seen)) for part in self.parts]
        unused = next((part for part, step in found if step is None), None)
        if unused is not None:
            raise ModelError(
                f"SplitModel: layer {str(unused)!r} was not used for this batch; name the final layer with layer="
            )
        return [step for _, step in found if step is not None]

    def head(self, steps: Sequence[Step]) -> Head:
        """Return the head that turns the features into the logits."""
        scaled = [(part.scale, step) for part, step in zip(self.parts, steps, strict=True)]
        weight = torch.cat([scale * step.weight.detach().float() for scale, step in scaled], dim=1)
        bias = weight.new_zeros(len(weight)) if self.offset is None else self.offset.to(weight.device)
        for scale, step in scaled:
            bias = bias if step.bias is None else scale * step.bias.detach().float() + bias
        return Head(weight.clone(), bias)

    def features(self, steps: Sequence[Step]) -> Tensor:
        """Return the inputs of the parts, side by side."""
        return steps[0].features if len(steps) == 1 else torch.cat([step.features for step in steps], dim=1)

    def logits(self, steps: Sequence[Step]) -> Tensor:
        """Return the sum of the parts' outputs in float32."""
        pairs = zip(self.parts, steps, strict=True)
        total = _sum([step.logits if part.scale == 1 else part.scale * step.logits for part, step in pairs])
        return total if self.offset is None else total + self.offset.to(total.device)

    def explains(self, steps: Sequence[Step], output: Any) -> bool:
        """Whether the network's output follows from its steps; images that give NaN or Inf do not count."""
        found = answers(output, len(steps[0].output)).get(self.answer)
        if found is None:
            return False
        if not self.describe() and found is steps[0].output and steps[0].kept:
            return True
        return close(ENDINGS[self.ending](self.logits(steps)), as_rows(found), _allowed(found, *steps))


def search_head(
    model: nn.Module, example: Tensor | None, layer: str | None = None
) -> tuple[Recipe, Tensor, Sequence[Step]]:
    """Find how a network's output is made of linear steps, and return it with the images used and the steps.

    Args:
        model: the network; a copy of it is run.
        example: a batch of images, if the network takes unusual ones.
        layer: the names of the layers, if they are known.
    """
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelError(
            "SplitModel: the layers of a TorchScript network cannot be recorded; pass the network that it was made from,"
            f" or {identity_lines('C')}, where C is its number of classes"
        )
    problem: Exception | None = None
    for images in [example] if example is not None else example_inputs(model):
        try:
            steps, output = probe(model, images[:FEW])
        except Exception as error:  # a network may raise anything for an input that it does not take
            problem = problem or error
            continue
        recipe = explain(steps, output, layer)
        if recipe is None and len(images) > FEW:
            steps, output = probe(model, images[:MANY])
            recipe = explain(steps, output, layer)
        if recipe is None:
            raise ModelError(f"SplitModel: {type(model).__name__} {_refusal(model, steps, output, layer)}")
        return recipe, images[:FEW], recipe.steps(steps)
    reason = (str(problem).strip().splitlines() or [type(problem).__name__])[0][:200] if problem else "no input fits"
    raise NotProbedError(
        f"SplitModel: {type(model).__name__} could not be probed ({reason}); pass example=, a batch of its images, or layer="
    )


def probe(model: nn.Module, images: Tensor) -> tuple[list[Step], Any]:
    """Run a copy of a network and return its linear steps and its output."""
    own = copied(model)
    with inference(own), recorded(own) as steps, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about noise of a guessed size help nobody
        output = call(own, as_input(own, images))
    return steps, output


def example_inputs(model: nn.Module) -> Iterator[Tensor]:
    """Yield noise of the sizes that a network may take, those that it declares first."""
    first = next((module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)), None)
    if isinstance(first, nn.Linear):
        yield torch.randn(MANY, first.in_features, generator=torch.Generator().manual_seed(0))
    channels = next((module.in_channels for module in model.modules() if isinstance(module, nn.Conv2d)), 3)
    declared = list(dict.fromkeys(_declared_shapes(model, channels)))
    for shape in [*declared, *((channels, size, size) for size in SIZES)]:
        yield noise(shape)


def noise(shape: tuple[int, ...]) -> Tensor:
    """Return noise images that differ in brightness and contrast, so that a network's outputs differ too."""
    rows = torch.arange(MANY).view(-1, *(1 for _ in shape))
    return torch.rand((MANY, *shape), generator=torch.Generator().manual_seed(0)) * (1 + rows % 3) - 0.5 * (rows % 4)


def _declared_shapes(model: nn.Module, channels: int) -> Iterator[tuple[int, ...]]:
    """Yield the input shapes that a network, or one inside it, declares: a transformer of 384 pixels takes no other."""
    for module in model.modules():
        config = getattr(module, "pretrained_cfg", None) or getattr(module, "default_cfg", None)
        if isinstance(config, Mapping) and config.get("input_size"):
            yield tuple(int(side) for side in config["input_size"])
        hugging = getattr(module, "config", None)
        for holder, name in ((hugging, "image_size"), (module, "image_size"), (module, "img_size")):
            size = getattr(holder, name, None)
            size = (size, size) if isinstance(size, int) else size
            if isinstance(size, tuple | list) and len(size) == 2 and all(isinstance(side, int) for side in size):
                own = getattr(holder, "num_channels", None)
                yield (own if isinstance(own, int) else channels, *size)


def check_layer(model: nn.Module, layer: str) -> None:
    """Refuse names of layers that cannot be a head."""
    named = [(name, module) for name, module in model.named_modules() if is_linear(module)]
    # Of convolutions that see more than one place, only the last layer may be a head.
    names = [
        name
        for place, (name, module) in enumerate(named, 1)
        if isinstance(module, nn.Linear) or tuple(module.kernel_size) == (1, 1) or place == len(named)
    ]
    if any(part.key not in names and not is_function(part.key) for part in parts_of(layer)):
        raise ModelError(
            f"SplitModel: layer must name an nn.Linear of the model, got {layer!r}; it has {', '.join(names[-5:]) or 'none'}"
        )


def identity_lines(classes: int | str) -> str:
    """Return the two lines that give any network a head: the identity, with the logits as features."""
    return (
        f"add two lines: head = nn.Linear({classes}, {classes}, bias=False); head.weight.data = torch.eye({classes}) and"
        " model = nn.Sequential(model, head) (methods then see its logits alone)"
    )


def _refusal(model: nn.Module, steps: Sequence[Step], output: Any, layer: str | None) -> str:
    """Describe what a network ends in if it has no head that can be recovered, and what helps."""
    found = answers(output, len(steps[-1].output)) if steps else {}
    if steps and not found:
        what = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
        return f"returns {what}, not one row of logits per image; make its forward return the logits (N, C)"
    wanted = next(iter(found.values()), output)
    classes = as_rows(wanted).shape[-1] if isinstance(wanted, Tensor) and wanted.ndim else "C"
    helps = identity_lines(classes)
    kinds = [(name, type(module).__module__, module) for name, module in model.named_modules()]
    quantized = ("torch.ao.nn.quantized", "torch.nn.quantized", "torchao.")
    int8 = [name for name, kind, module in kinds if kind.startswith(quantized) and hasattr(module, "weight")]
    if int8:
        return f"has int8 layers (the last is {int8[-1]!r}) without a float head; leave its last layer in float, or {helps}"
    if layer is not None:
        return f"does not return the output of layer={layer!r} or a softmax, sigmoid or multiple of it; drop layer=, or {helps}"
    if any(isinstance(module, torch.jit.ScriptModule) for _, _, module in kinds):
        return f"ends inside TorchScript, whose layers cannot be recorded; {helps}"
    fits = [step for step in steps if step.shape in {tuple(as_rows(value).shape) for value in found.values()}]
    if not fits:
        return f"does not end in a linear layer with {classes} outputs; {helps}"
    return (
        f"changes the output of its last linear layer {fits[-1].key!r} in a way that cannot be undone, such as a ReLU or a mean"
        f" of probabilities; return that layer's output, or {helps}"
    )


# What a network returns


def answers(output: Any, count: int) -> dict[str, Tensor]:
    """Return the tensors in a network's return value that may be logits, one row per image, by their place in it."""
    found = {name: value for name, value in _tensors(output, "") if value.is_floating_point() and value.numel()}
    fit = {
        name: value for name, value in found.items() if value.ndim and len(value) == count and as_rows(value).ndim == 2
    }
    return dict(sorted(fit.items(), key=lambda item: item[0] != "logits"))


def as_rows(output: Tensor) -> Tensor:
    """Reshape single numbers and maps of one place to one row per image."""
    if output.ndim == 1:
        return output.unsqueeze(1)
    return output.flatten(1) if output.ndim > 2 and output[0, 0].numel() == 1 else output


def close(found: Tensor, wanted: Tensor, tolerance: float = TOLERANCE) -> bool:
    """Whether two outputs are equal up to rounding, image by image; images that give NaN or Inf do not count."""
    if found.shape != wanted.shape:
        return False
    found, wanted = found.detach().double(), wanted.detach().double()
    counted = torch.isfinite(found).all(dim=1) & torch.isfinite(wanted).all(dim=1)
    size = wanted.abs().amax(dim=1)
    return bool((((found - wanted).abs().amax(dim=1) <= tolerance * size) | ~counted).all())


def _allowed(wanted: Tensor, *steps: Step) -> float:
    """Return the tolerance of the lowest precision involved."""
    return max(TOLERANCES.get(value.dtype, TOLERANCE) for value in (wanted, *(step.output for step in steps)))


def _tensors(output: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(output, Tensor):
        yield path, output
    elif isinstance(output, Mapping):
        for key, value in output.items():
            yield from _tensors(value, f"{path}.{key}" if path else str(key))
    elif isinstance(output, tuple) and hasattr(output, "_fields"):
        yield from _tensors(dict(zip(output._fields, output, strict=True)), path)
    elif isinstance(output, tuple | list):
        for place, value in enumerate(output):
            yield from _tensors(value, f"{path}[{place}]")
    elif is_dataclass(output) and not isinstance(output, type):
        yield from _tensors({entry.name: getattr(output, entry.name) for entry in fields(output)}, path)
    elif isinstance(getattr(output, "logits", None), Tensor):
        yield "logits", output.logits


# Explaining the output


def explain(steps: Sequence[Step], output: Any, layer: str | None = None) -> Recipe | None:
    """Find how a network's output is made of its linear steps, the last ones first; `None` if they do not explain it.

    Args:
        steps: the steps of one forward pass.
        output: the network's return value.
        layer: the names of the parts, as `Recipe.layer` gives them, if they are known.
    """
    found: dict[str, tuple[Recipe, list[Step]]] = {}
    for name, tensor in (answers(output, len(steps[-1].output)) if steps else {}).items():
        rows = as_rows(tensor)
        parts = _numbered(steps) if layer is None else [(part, part.among(steps)) for part in parts_of(layer)][::-1]
        usable = [(part, step) for part, step in parts if step is not None and step.shape == rows.shape]
        recipe = _fitting(usable, rows)
        if recipe is not None:
            recipe = replace(recipe, answer=name)
            if name == "logits":
                return recipe
            found[name] = recipe, recipe.steps(steps)
        elif name == "logits" and layer is None:
            return None  # other outputs may be anything
    # Features beside logits are not logits: outputs from which others are computed do not count.
    widths = {name: sum(step.weight.shape[1] for step in own) for name, (_, own) in found.items()}
    ends = [
        recipe
        for name, (recipe, own) in found.items()
        if not any(own[0].weight.shape[0] == width for other, width in widths.items() if other != name)
    ]
    heads = {recipe.layer: recipe for recipe in reversed(ends)}
    if len(heads) > 1:
        listed = ", ".join(f"layer={name!r}" for name in reversed(heads))
        raise ModelError(f"SplitModel: the network returns the outputs of {len(heads)} heads; name one: {listed}")
    return next(iter(heads.values()), None)


def _numbered(steps: Sequence[Step]) -> list[tuple[Part, Step | None]]:
    """Return each step with its name and number, the last step first."""
    seen: dict[str, int] = {}
    found: list[tuple[Part, Step | None]] = []
    for step in reversed(steps):
        for key in {step.key, step.function}:
            seen[key] = seen.get(key, 0) - 1
        found.append((Part(step.key, seen[step.key]), step))
    return found


def _fitting(usable: Sequence[tuple[Part, Step]], wanted: Tensor) -> Recipe | None:
    """Find one step that explains the output, as it is or with a factor and constants, or else a weighted sum of steps."""
    for part, step in usable:
        if step.output is wanted and step.kept:
            return Recipe((part,))
    for ending, end in ENDINGS.items():
        for part, step in usable:
            if close(end(step.logits), wanted, _allowed(wanted, step)):
                return Recipe((part,), ending)
    single, together = [[pair] for pair in usable], [usable[:MOST_PARTS]] if len(usable) > 1 else []
    for groups, constants in ((single, False), (single, True), (together, False)):
        for ending in ENDINGS:
            for group in groups:
                recipe = _fitted(group, wanted, ending, constants=constants)
                if recipe is not None:
                    return recipe
    return None


def _fitted(group: Sequence[tuple[Part, Step]], wanted: Tensor, ending: str, *, constants: bool) -> Recipe | None:
    """Fit a factor for each step, and a constant per class, by least squares; `None` if they do not explain the output."""
    target = _UNDOINGS[ending](wanted.detach().double())
    if not bool(torch.isfinite(target).all()) or not float(target.abs().max()) > 0:
        return None
    varies = float((target - target.mean(dim=0)).abs().max()) > VARIES * float(target.abs().max())
    unknown, rows = len(group), target
    if (constants or unknown > 1 or target.shape[1] == 1) and not varies:
        return None
    logits = [step.logits.detach().double() for _, step in group]
    made = [_centred(one) if "softmax" in ending else one for one in logits]
    if constants:  # fitted to the differences between images, which constants do not change
        made, rows, unknown = [one - one.mean(dim=0) for one in made], target - target.mean(dim=0), 3
    if (len(target) - constants) * target.shape[1] < (2 * unknown if len(group) > 1 else unknown):
        return None
    columns = torch.stack([one.flatten() for one in made], dim=1).cpu()
    scales = torch.linalg.lstsq(columns, rows.flatten().cpu().unsqueeze(1), driver="gelsd").solution[:, 0]
    kept = [place for place, scale in enumerate(scales.tolist()) if abs(scale) > 1e-4 * float(scales.abs().max())]
    tidy = [_tidy(float(scales[place])) for place in kept]
    if not kept or (len(kept) == 1) != (len(group) == 1):
        return None
    offset = None
    if constants:
        if float((tidy[0] * made[0] - rows).abs().max()) > 100 * TOLERANCE * float(rows.abs().max()):
            return None  # the constants alone explain whatever does not differ between images
        offset = (target - tidy[0] * (_centred(logits[0]) if "softmax" in ending else logits[0])).mean(dim=0)
    total = _sum([scale * logits[place] for scale, place in zip(tidy, kept, strict=True)])
    total = total if offset is None else total + offset
    if not close(ENDINGS[ending](total), wanted, _allowed(wanted, *(group[place][1] for place in kept))):
        return None
    parts = [replace(group[place][0], scale=scale) for scale, place in zip(tidy, kept, strict=True)]
    return Recipe(tuple(reversed(parts)), ending, None if offset is None else offset.float())


def _tidy(scale: float) -> float:
    """Round a fitted factor to the number that its author most likely wrote, if that is within rounding."""
    for simple in (float(f"{scale:.4g}"), 1 / float(f"{1 / scale:.4g}") if scale else 0.0):
        if abs(simple - scale) <= TOLERANCE * abs(scale):
            return simple
    return scale


def _sum(values: Sequence[Tensor]) -> Tensor:
    return values[0] if len(values) == 1 else torch.stack(list(values)).sum(dim=0)


def _centred(logits: Tensor) -> Tensor:
    return logits - logits.mean(dim=1, keepdim=True)

"""The search for a network's head: runs a copy of the network once and explains the output by its linear steps.

Most networks end in one linear layer. Others continue with a softmax, a temperature or the mean of several heads. Such endings are
inverted exactly, so that the logits are a linear function of the features and determine the network's own output.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from math import prod
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from idness.core.errors import ModelError
from idness.core.types import Head
from idness.networks.modules import as_input, call, copied, inference

SIZES = (32, 224, 64, 96, 128, 256, 299, 384, 28)
"""Image sizes to try, in this order, if a network is probed without an example."""
PROBED = 4
"""Number of images with which a network is probed."""
LOGITS = "@logits"
"""The layer name that stands for the network's output as both features and logits."""
TOLERANCE = 1e-5
"""Maximum difference between the recovered and the actual output, relative to the largest output of the image."""
TOLERANCES = {torch.float16: 2e-2, torch.bfloat16: 1e-1}
VARIES = 1e-4
"""Minimum relative difference between the outputs of different images for fitting a factor and constants."""

ENDINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "": lambda logits: logits,
    "softmax": lambda logits: logits.softmax(dim=1),
    "log-softmax": lambda logits: logits.log_softmax(dim=1),
    "sigmoid": torch.sigmoid,
}
"""Functions that networks apply to their logits, by name."""


# Linear steps of a forward pass


@dataclass(frozen=True, eq=False)
class Step:
    """One linear step of a forward pass: a layer or function call, applied at every position of an image.

    `key` is the dotted name of the layer (empty for the whole network) or the name of the function, such as `linear()`. `features`
    (N, D) is the mean input over all positions, which commutes with a linear step; `weight` is (C, D); `dtype` is that of the output.
    """

    key: str
    features: Tensor
    weight: Tensor
    bias: Tensor | None
    dtype: torch.dtype

    @property
    def logits(self) -> Tensor:
        """The output in float32, one row per image; recomputed, as the network may modify its own in place."""
        kind = torch.promote_types(self.features.dtype, torch.float32)
        bias = None if self.bias is None else self.bias.to(kind)
        return linear(self.features.to(kind), self.weight.to(kind), bias).float()


@contextmanager
def recorded(model: nn.Module, wanted: Sequence[str] | None = None) -> Iterator[list[Step]]:
    """Collect a network's linear steps while the block runs; other threads may run the same network at the same time.

    `wanted` lists the layers and functions to record; `None` records all.
    """
    steps: list[Step] = []
    mine = get_ident()

    def note(key: str, entered: Tensor, weight: Tensor, bias: Tensor | None, output: Tensor) -> None:
        features = _pooled(entered, weight) if wanted is None or key in wanted else None
        if features is not None:
            steps.append(Step(key, features, weight.flatten(1), bias, output.dtype))

    def layer_ran(name: str, module: Any, entered: tuple[Any, ...], output: Any) -> None:
        # Threads share the layer and its hooks.
        if get_ident() == mine and entered and isinstance(output, Tensor):
            before = len(steps)
            weight, bias = module.weight, module.bias
            del steps[before:]  # the functions that compute a parametrized weight
            note(name, entered[0], weight, bias, output)

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if (wanted is None or name in wanted) and is_linear(module):
                stack.callback(module.register_forward_hook(partial(layer_ran, name)).remove)
        if wanted is None or any(map(is_function, wanted)):
            stack.enter_context(_Functions(note))
        yield steps


def is_function(key: str) -> bool:
    """Whether a key names a function or the network's output rather than a layer."""
    return key.endswith("()") or key == LOGITS


def is_linear(module: nn.Module) -> bool:
    """Whether a module is a linear layer, or a convolution over a single position or over all positions."""
    if isinstance(module, nn.Conv2d):
        return module.groups == 1 and module.stride == (1, 1) and module.padding in ("valid", (0, 0))
    return isinstance(module, nn.Linear)


def _pooled(entered: Tensor, weight: Tensor) -> Tensor | None:
    """Return the mean input over all positions; `None` for a convolution over several positions but not all."""
    if weight.ndim == 2:
        return entered if entered.ndim <= 2 else entered.flatten(1, -2).mean(dim=1)
    if prod(entered.shape[1:]) == prod(weight.shape[1:]):
        return entered.flatten(1)
    return entered.flatten(2).mean(dim=2) if weight.shape[2:] == (1, 1) and entered.ndim == 4 else None


class _Functions(TorchFunctionMode):
    """A mode that records calls of functions that compute linear steps; such modes are local to a thread."""

    def __init__(self, note: Callable[..., None]) -> None:
        super().__init__()
        self.note = note

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        if func in _READERS and isinstance(output, Tensor) and output.ndim > 1:
            key, entered, weight, bias = _READERS[func](*args, **(kwargs or {}))
            if weight.ndim == 2 and (bias is None or bias.ndim == 1):
                self.note(key, entered, weight, bias, output)
        return output


def _product(input: Tensor, other: Any = None, *, mat2: Any = None) -> tuple[str, Tensor, Tensor, None]:
    other = mat2 if other is None else other
    return "matmul()", input, other.t() if other.ndim == 2 else other, None


_READERS: dict[Any, Callable[..., tuple[str, Tensor, Tensor, Tensor | None]]] = {
    linear: lambda input, weight, bias=None: ("linear()", input, weight, bias),
    **dict.fromkeys((torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm), _product),
    **dict.fromkeys(
        (torch.addmm, Tensor.addmm),
        lambda input, mat1, mat2, *, beta=1, alpha=1: ("addmm()", mat1, alpha * mat2.t(), beta * input),
    ),
}
"""Functions that compute linear steps, with readers that return a call's key, input, weight and bias."""


# The output as a function of the steps


@dataclass(frozen=True, eq=False)
class Recipe:
    """A network's output as a function of linear steps: the ending applied to the weighted sum of the parts plus the offset (C,).

    `parts` has the factor of each step by name: `fc`, or `fc[-2]` for the last call but one of a layer. `answer` is the position of the
    output in the network's return value, one of `answers`.
    """

    parts: Mapping[str, float]
    ending: str = ""
    offset: Tensor | None = None
    answer: str = ""

    @property
    def layer(self) -> str:
        """The names of the parts, joined by `+`."""
        return "+".join(self.parts)

    def describe(self) -> str:
        """Return a short description of how layer outputs become the network's output; empty if they are equal."""
        said = [f"sum of {len(self.parts)}"] if len(self.parts) > 1 else []
        factors = [f"{scale:.4g}" for scale in self.parts.values()]
        if set(factors) != {"1"}:
            said.append(f"times {', '.join(factors[:4])}")
        if self.offset is not None:
            said.append("plus constants")
        return ", ".join([*said, self.ending] if self.ending else said)

    def keys(self) -> list[str]:
        """Return the layer or function of each part."""
        return list(map(_key, self.parts))

    def steps(self, seen: Sequence[Step], output: Any) -> list[Step]:
        """Return the steps of a forward pass that are the parts of this recipe."""
        if self.layer == LOGITS:
            return [_output_step(output)]
        known = _named(seen)
        if not self.parts.keys() <= known.keys():
            raise ModelError(f"SplitModel: layer {self.layer!r} was not used for this batch; pass another layer=")
        return [known[name] for name in self.parts]

    def head(self, steps: Sequence[Step]) -> Head:
        """Return the head that computes the logits from the features."""
        scaled = list(zip(self.parts.values(), steps, strict=True))
        weight = torch.cat([scale * step.weight.detach().float() for scale, step in scaled], dim=1)
        bias = weight.new_zeros(len(weight)) if self.offset is None else self.offset.to(weight.device)
        for scale, step in scaled:
            bias = bias if step.bias is None else scale * step.bias.detach().float() + bias
        return Head(weight, bias)

    def logits(self, steps: Sequence[Step]) -> Tensor:
        """Return the weighted sum of the parts' outputs in float32."""
        first, *others = (step.logits * scale for scale, step in zip(self.parts.values(), steps, strict=True))
        total = sum(others, first)
        return total if self.offset is None else total + self.offset.to(total.device)

    def explains(self, steps: Sequence[Step], output: Any) -> bool:
        """Whether the network's output follows from its steps; images that yield NaN or Inf are ignored."""
        found = answers(output).get(self.answer)
        if found is None:
            return False
        return close(ENDINGS[self.ending](self.logits(steps)), as_rows(found), _allowed(found, *steps))


# Searching


def search_head(
    model: nn.Module, example: Tensor | None, layer: str | None = None
) -> tuple[Recipe, Tensor, list[Step]]:
    """Return the recipe that explains a network's output by linear steps, the images used, and the steps."""
    kind, names = type(model).__name__, [name for name, module in model.named_modules() if is_linear(module)]
    if layer is not None and any(key not in names and not is_function(key) for key in map(_key, layer.split("+"))):
        raise ModelError(f"SplitModel: layer {layer!r} is not linear; the model has {', '.join(names[-5:]) or 'none'}")
    problem = ""
    for images in [example[:PROBED]] if example is not None else example_inputs(model):
        try:
            steps, output = probe(model, images)
        except Exception as error:  # a network can raise anything for unsupported input
            problem = problem or (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            continue
        recipe = explain(steps, output, layer)
        if recipe is not None:
            return recipe, images, recipe.steps(steps, output)
        for found in answers(output).values():
            head = "a linear layer" if layer is None else f"layer {layer!r}"
            raise ModelError(
                f"SplitModel: {kind} returns {as_rows(found).shape[1]} outputs that are not those of {head}, nor their softmax, sigmoid,"
                f" multiple or sum; pass layer='{LOGITS}' to use them as features and logits, or return those of a linear layer"
            )
        raise ModelError(f"SplitModel: {kind} does not return one row of logits per image; return the logits (N, C)")
    raise ModelError(f"SplitModel: {kind} could not be probed ({problem}); pass example=, a batch of images")


def probe(model: nn.Module, images: Tensor) -> tuple[list[Step], Any]:
    """Run a copy of a network and return its linear steps and its output."""
    own = copied(model)
    with inference(own), recorded(own) as steps, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about noise of a guessed size are irrelevant
        output = call(own, as_input(own, images.clone()))  # some networks normalise their input in place
    return steps, output


def example_inputs(model: nn.Module) -> Iterator[Tensor]:
    """Yield noise of the sizes that a network may accept, beginning with those it declares."""
    first = next((module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)), None)
    if isinstance(first, nn.Linear):
        yield torch.randn(PROBED, first.in_features, generator=torch.Generator().manual_seed(0))
    channels = next((module.in_channels for module in model.modules() if isinstance(module, nn.Conv2d)), 3)
    for shape in (*_declared_shapes(model, channels), *((channels, size, size) for size in SIZES)):
        yield noise(shape)


def noise(shape: tuple[int, ...]) -> Tensor:
    """Return noise images of different brightness and contrast, so that a network's outputs differ too."""
    rows = torch.arange(PROBED).view(-1, *(1 for _ in shape))
    return torch.rand((PROBED, *shape), generator=torch.Generator().manual_seed(0)) * (1 + rows % 3) - 0.5 * rows


def _declared_shapes(model: nn.Module, channels: int) -> Iterator[tuple[int, ...]]:
    """Yield the input shapes that a network or a submodule declares; for example, a transformer may accept only 384 pixels."""
    for module in model.modules():
        config = getattr(module, "pretrained_cfg", None) or getattr(module, "default_cfg", None)
        if isinstance(config, Mapping) and config.get("input_size"):
            yield tuple(config["input_size"])
        for holder in (getattr(module, "config", None), module):
            size = getattr(holder, "image_size", None) or getattr(holder, "img_size", None)
            size = (size, size) if isinstance(size, int) else size
            if isinstance(size, tuple | list) and len(size) == 2:
                yield (getattr(holder, "num_channels", channels), *size)


# What a network returns


def answers(output: Any) -> dict[str, Tensor]:
    """Return the tensors in a network's return value that may be logits, one row per image, by position."""
    found = [(name, value) for name, value in _tensors(output) if value.is_floating_point() and value.numel()]
    return dict(sorted((item for item in found if as_rows(item[1]).ndim == 2), key=lambda item: item[0] != "logits"))


def as_rows(output: Tensor) -> Tensor:
    """Return an output as one row per image, including single numbers and maps of one position."""
    if output.ndim == 1:
        return output.unsqueeze(1)
    return output.flatten(1) if output.ndim > 2 and output[0, 0].numel() == 1 else output


def close(found: Tensor, wanted: Tensor, tolerance: float = TOLERANCE) -> bool:
    """Whether two outputs are equal up to rounding, image by image; images that yield NaN or Inf are ignored."""
    if found.shape != wanted.shape:
        return False
    found, wanted = found.detach().double(), wanted.detach().double()
    counted = torch.isfinite(found).all(dim=1) & torch.isfinite(wanted).all(dim=1)
    size = wanted.abs().amax(dim=1)
    return bool((((found - wanted).abs().amax(dim=1) <= tolerance * size) | ~counted).all())


def _allowed(wanted: Tensor, *steps: Step) -> float:
    """Return the tolerance of the lowest precision involved."""
    return max(TOLERANCES.get(dtype, TOLERANCE) for dtype in (wanted.dtype, *(step.dtype for step in steps)))


def _tensors(output: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(output, Tensor):
        yield path, output
        return
    if isinstance(output, tuple | list):
        output = dict(enumerate(output))
    elif not isinstance(output, Mapping):
        output = vars(output) if is_dataclass(output) or hasattr(output, "logits") else {}
    for key, value in output.items():
        yield from _tensors(value, f"{path}.{key}" if path else str(key))


def _output_step(output: Any) -> Step:
    """Return the step `@logits`: the identity, with the network's output as features."""
    rows = as_rows(next(iter(answers(output).values()), torch.empty(0, 0)))
    return Step(LOGITS, rows, torch.eye(rows.shape[1], device=rows.device), None, rows.dtype)


# Explaining the output


def explain(steps: Sequence[Step], output: Any, layer: str | None = None) -> Recipe | None:
    """Return the recipe that explains a network's output by its linear steps, trying the last ones first; `None` if there is none."""
    candidates = {LOGITS: _output_step(output)} if layer == LOGITS else _named(steps)
    if layer is not None:
        candidates = {name: step for name, step in candidates.items() if name in layer.split("+")}
    outputs = answers(output)
    if layer is None and "logits" in outputs:  # other outputs can be anything
        outputs = {"logits": outputs["logits"]}
    found: list[tuple[Recipe, tuple[int, int]]] = []
    for name, tensor in outputs.items():
        rows = as_rows(tensor)
        usable = {key: step for key, step in candidates.items() if (len(step.features), len(step.weight)) == rows.shape}
        if recipe := _fitting(usable, rows):
            width = sum(step.weight.shape[1] for step in recipe.steps(steps, output))
            found.append((replace(recipe, answer=name), (rows.shape[1], width)))
    # Features that are returned along with logits are not logits: ignore outputs from which others are computed.
    ends: dict[str, Recipe] = {}
    for recipe, (classes, _) in found:
        if all(classes != width for other, (_, width) in found if other is not recipe):
            ends.setdefault(recipe.layer, recipe)
    if len(ends) > 1:
        listed = ", ".join(f"layer={name!r}" for name in ends)
        raise ModelError(f"SplitModel: the network returns the outputs of {len(ends)} heads; choose one: {listed}")
    return next(iter(ends.values()), None)


def _named(steps: Sequence[Step]) -> dict[str, Step]:
    """Return steps by name: layers before functions, the last step first."""
    calls: Counter[str] = Counter()
    found: dict[str, Step] = {}
    for step in reversed(steps):
        calls[step.key] -= 1
        found[step.key + (f"[{calls[step.key]}]" if calls[step.key] < -1 else "")] = step
    return dict(sorted(found.items(), key=lambda item: is_function(item[1].key)))


def _key(name: str) -> str:
    """Return the layer or function of a step, given the step's name."""
    return re.sub(r"\[-\d+\]$", "", name)


def _fitting(usable: Mapping[str, Step], wanted: Tensor) -> Recipe | None:
    """Return a recipe of one step, possibly with a factor and constants, or else of a weighted sum of layers; `None` if none fits."""
    for ending, end in ENDINGS.items():
        for name, step in usable.items():
            if close(end(step.logits), wanted, _allowed(wanted, step)):
                return Recipe({name: 1.0}, ending)
    single = [{name: step} for name, step in usable.items()]
    layers = {name: step for name, step in usable.items() if not is_function(step.key)}
    tries = ((single, False), (single, True), ([layers] if len(layers) > 1 else [], False))
    fits = (
        _fitted(group, wanted, end, constants=plus) for groups, plus in tries for end in ENDINGS for group in groups
    )
    return next((recipe for recipe in fits if recipe is not None), None)


def _fitted(group: Mapping[str, Step], wanted: Tensor, ending: str, *, constants: bool) -> Recipe | None:
    """Return a recipe with a factor for each step, and optionally a constant per class, fitted by least squares; `None` if none fits."""
    wanted = wanted.detach().cpu()
    inverses: dict[str, Any] = {"softmax": torch.log, "sigmoid": torch.logit}
    target = inverses.get(ending, torch.clone)(wanted.double())
    made = torch.stack([step.logits.detach().double().cpu() for step in group.values()])
    if "softmax" in ending:  # invariant to a constant per image
        target, made = (value - value.mean(dim=-1, keepdim=True) for value in (target, made))
    apart = target - target.mean(dim=0)
    enough = (len(target) - constants) * target.shape[1] >= max(3 * constants, 2 * len(group))
    if not enough or not bool(torch.isfinite(target).all()) or not apart.abs().max() > VARIES * target.abs().max():
        return None
    # Constants do not change the differences between images.
    columns, rows = (made - made.mean(dim=1, keepdim=True), apart) if constants else (made, target)
    scales = torch.linalg.lstsq(columns.flatten(1).T, rows.reshape(-1, 1), driver="gelsd").solution
    scales[scales.abs() <= 1e-4 * scales.abs().max()] = 0.0
    parts = {name: scale for name, scale in zip(group, scales[:, 0].tolist(), strict=True) if scale}
    if not parts or (len(parts) == 1) != (len(group) == 1):
        return None
    total, offset = (scales.unsqueeze(2) * made).sum(dim=0), None
    if constants:
        if not close(scales * columns[0], rows, 100 * TOLERANCE):
            return None  # constants alone would explain any output that is equal for all images
        offset = (target - total).mean(dim=0)
        total = total + offset
    if not close(ENDINGS[ending](total), wanted, _allowed(wanted, *group.values())):
        return None
    return Recipe(dict(reversed(parts.items())), ending, None if offset is None else offset.float())

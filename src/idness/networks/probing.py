"""Finds a network's head by running a copy of it once, or says what it has in place of one and what helps."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from idness.core.errors import ModelError
from idness.data import Preprocessing
from idness.networks.answers import answers, as_rows, close
from idness.networks.modes import inference
from idness.networks.recovery import Recipe, explain
from idness.networks.watching import Step, watching

SIZES = (32, 224, 64, 96, 128, 256, 299, 384, 28)
"""Image sizes tried, in this order, when a network is probed without an example: small ones are cheap."""
FEW, MANY = 3, 16
"""Images that a network is probed with, and those for networks of which few say too little."""


class NotProbedError(ModelError):
    """Says that a network took no input that was tried."""


def copied(model: nn.Module) -> nn.Module:
    """Copy a network with all it remembers, but not its parameters, which both have; itself where it cannot be copied.

    Some networks remember the size of the images they have seen, and take no others from then on.
    """
    values = [value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor)]
    shared = [*model.parameters(), *(value for value in values if not value.is_leaf)]
    try:
        return copy.deepcopy(model, {id(value): value for value in shared})
    except Exception:  # locks, open files: whatever a module may hold that has no copy
        return model


def find_recipe(
    model: nn.Module, example: Tensor | None, layer: str | None = None
) -> tuple[Recipe, Tensor, Sequence[Step]]:
    """Find how a network's output is made of linear steps, and give it with the images that showed it and the steps.

    Args:
        model: the network; a copy of it is run.
        example: images, where the network takes unusual ones.
        layer: the names of the layers, where they are known.
    """
    _refuse_closed(model)
    problem: Exception | None = None
    for images in [example] if example is not None else examples(model):
        try:
            steps, output = probe(model, images[:FEW])
        except Exception as error:  # whatever a network says to an input it does not take; the next size may suit
            problem = problem or error
            continue
        recipe = explain(steps, output, layer)
        if recipe is None and len(images) > FEW:
            steps, output = probe(model, images[:MANY])
            recipe = explain(steps, output, layer)
        if recipe is None:
            raise ModelError(f"SplitModel: {type(model).__name__} {refusal(model, steps, output, layer)}")
        return recipe, images[:FEW], recipe.steps(steps)
    reason = (str(problem).strip().splitlines() or [type(problem).__name__])[0][:200] if problem else "no input fits"
    raise NotProbedError(
        f"SplitModel: {type(model).__name__} could not be probed ({reason}); give example=, one batch of its images, or layer="
    )


def probe(model: nn.Module, images: Tensor) -> tuple[list[Step], Any]:
    """Run a copy of a network and give its linear steps and what it returned."""
    own = copied(model)
    with inference(own), watching(own) as steps, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it says to noise of a guessed size is of no use to anybody
        output = call(own, as_input(own, images))
    return steps, output


def call(model: nn.Module, images: Tensor) -> Any:
    """Run a network; one that was compiled in place runs as it is written, as compiled code heeds no hooks."""
    if getattr(model, "_compiled_call_impl", None) is None:
        return model(images)
    return model._call_impl(images)  # type: ignore[no-untyped-call]


def as_input(model: nn.Module, images: Tensor) -> Tensor:
    """Bring images to a network's device and precision."""
    own = next((value for value in model.parameters() if value.is_floating_point()), None)
    if own is None:
        return images
    return images.to(own.device, own.dtype if images.is_floating_point() else None)


def examples(model: nn.Module) -> Iterator[Tensor]:
    """Make noise of the sizes that a network may take: first what it says itself."""
    first = next((module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)), None)
    if isinstance(first, nn.Linear):
        yield torch.randn(MANY, first.in_features, generator=torch.Generator().manual_seed(0))
    channels = next((module.in_channels for module in model.modules() if isinstance(module, nn.Conv2d)), 3)
    said = list(dict.fromkeys(_said_shapes(model, channels)))
    for shape in [*said, *((channels, size, size) for size in SIZES)]:
        yield noise(shape)


def noise(shape: tuple[int, ...]) -> Tensor:
    """Make images of noise that differ in brightness and contrast, so that a network's outputs differ too."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.arange(MANY).view(-1, *(1 for _ in shape))
    return torch.rand((MANY, *shape), generator=generator) * (1 + rows % 3) - 0.5 * (rows % 4)


def example_for(how: Preprocessing | None) -> Tensor | None:
    """Make noise of the size that pictures have when they reach a network; none where nothing says it."""
    return None if how is None or how.size is None else noise((how.channels, *how.size))


def _said_shapes(model: nn.Module, channels: int) -> Iterator[tuple[int, ...]]:
    """Give the input shapes that a network, or one inside it, says it takes: a transformer of 384 pixels takes nothing else."""
    for module in model.modules():
        config = getattr(module, "pretrained_cfg", None) or getattr(module, "default_cfg", None)
        if isinstance(config, Mapping) and config.get("input_size"):
            yield tuple(int(side) for side in config["input_size"])
        for holder, name in (
            (getattr(module, "config", None), "image_size"),
            (module, "image_size"),
            (module, "img_size"),
        ):
            size = getattr(holder, name, None)
            size = (size, size) if isinstance(size, int) else size
            if isinstance(size, tuple | list) and len(size) == 2 and all(isinstance(side, int) for side in size):
                said = getattr(holder, "num_channels", None)
                yield (said if isinstance(said, int) else channels, *size)


def says_multi_label(model: nn.Module) -> bool:
    """Tell whether a network, or one inside it, says of itself that an image may get several labels."""
    said = (getattr(getattr(module, "config", None), "problem_type", None) for module in model.modules())
    return any(kind == "multi_label_classification" for kind in said)


def _refuse_closed(model: nn.Module) -> None:
    """Refuse networks whose steps cannot be watched."""
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelError(
            "SplitModel: the network is TorchScript, whose layers cannot be watched; give the network that it was made of,"
            f" or {ends_in_identity('C')}, where C is its number of classes"
        )


def refusal(model: nn.Module, steps: Sequence[Step], output: Any, layer: str | None) -> str:
    """Say what a network ends in, where it has no head that can be recovered, and what helps."""
    found = answers(output, len(steps[-1].output)) if steps else {}
    if steps and not found:
        return _no_answer(output)
    shapes = {tuple(as_rows(value).shape) for value in found.values()}
    fits = [step for step in steps if step.shape in shapes]
    wanted = next(iter(found.values()), output)
    classes = as_rows(wanted).shape[-1] if isinstance(wanted, Tensor) and wanted.ndim else "C"
    helps = ends_in_identity(classes)
    whole = next((name for name, module in reversed(list(model.named_modules())) if _is_quantized(module)), None)
    if whole is not None:
        return f"has int8 layers (the last is {whole!r}), which compute no float head; leave its last layer in float, or {helps}"
    if layer is not None:
        return f"does not give the output of layer={layer!r}, whatever factor, softmax or sigmoid follows; drop layer=, or {helps}"
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        return f"ends inside TorchScript, whose layers cannot be watched; {helps}"
    if not fits:
        return f"ends in no linear layer that gives its {classes} outputs; {helps}"
    if close(_mean([step.logits.softmax(dim=1) for step in fits]), as_rows(wanted)):
        return (
            f"averages the probabilities of {len(fits)} heads, which no single head does; average their logits"
            f" (torch.stack(outputs).mean(dim=0) before the softmax), or {helps}"
        )
    last = fits[-1]
    if not last.kept or close(_pooled(last.output.relu()), as_rows(wanted)):
        return f"puts a ReLU or the like behind its last layer {last.key!r}, which cannot be undone; leave it out, or {helps}"
    return f"changes what its last linear layer {last.key!r} gives in a way that cannot be undone; end it in that layer, or {helps}"


def ends_in_identity(classes: int | str) -> str:
    """Write the two lines that give any network a head: the identity, with the logits as features."""
    return (
        f"add two lines: head = nn.Linear({classes}, {classes}, bias=False); head.weight.data = torch.eye({classes}) and"
        " model = nn.Sequential(model, head) (methods then see its logits alone)"
    )


def _no_answer(output: Any) -> str:
    if isinstance(output, Tensor):
        return f"returns shape {tuple(output.shape)}, not one row of logits per image; pool it over all places first"
    kind = type(output).__name__
    return f"returns {kind} without a tensor that has one row of logits per image; wrap it so that forward returns the logits"


def _is_quantized(module: nn.Module) -> bool:
    kind = type(module).__module__
    return kind.startswith(("torch.ao.nn.quantized", "torch.nn.quantized", "torchao.")) and hasattr(module, "weight")


def _mean(values: list[Tensor]) -> Tensor:
    return torch.stack(values).mean(dim=0)


def _pooled(values: Tensor) -> Tensor:
    return values.flatten(2).mean(dim=2) if values.ndim == 4 else values

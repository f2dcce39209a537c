"""Any torch classifier, seen as features and a final linear layer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sized
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from idness.core.errors import DataError, InputError, ModelError
from idness.core.progress import shown
from idness.core.types import Activations, Head, InputEditor
from idness.networks.loading import load_model as load_model
from idness.networks.loading import load_weights as load_weights
from idness.networks.modes import differentiable
from idness.networks.modes import inference as inference

Precision = Literal["fp32", "bf16"]
SIZES = (32, 224, 64, 96, 128, 256, 299, 384, 28)
"""Image sizes tried, in this order, when a network is probed without an example: small ones are cheap."""


class SplitModel:
    """Shows any torch classifier as features and a head.

    The head is the `nn.Linear` whose output is the model's output, found by one forward pass. Hooks live only inside
    one call, and the network is left as it was: its parameters, buffers and training mode.

    Args:
        model: the classifier; wrappers (DataParallel, DistributedDataParallel, torch.compile) are looked through.
        layer: the final linear layer's dotted name, where it should not be searched.
        example: a batch of images for the search, where the network takes unusual input.
    """

    def __init__(self, model: nn.Module, layer: str | None = None, *, example: Tensor | None = None) -> None:
        if not isinstance(model, nn.Module):
            raise ModelError(f"SplitModel: model must be a torch nn.Module, got {type(model).__name__}")
        self.model = unwrap(model)
        self.layer = _named_layer(self.model, layer) if layer is not None else _find_layer(self.model, example)
        self._layout: torch.memory_format | None = torch.preserve_format
        self._moves_weights = False

    @property
    def linear(self) -> nn.Linear:
        """The final linear layer itself."""
        found = self.model.get_submodule(self.layer)
        assert isinstance(found, nn.Linear)
        return found

    @property
    def head(self) -> Head:
        """The final linear layer's weight and bias, as they are now, in float32."""
        linear = self.linear
        return Head(
            linear.weight.detach().float().clone(),
            None if linear.bias is None else linear.bias.detach().float().clone(),
        )

    def split(
        self, images: Tensor, *, precision: Precision = "fp32", edit_with: InputEditor | None = None
    ) -> Activations:
        """Run one batch through the network, and a second time as an editor changes it, if one is given."""
        if edit_with is not None:
            return self._split_twice(images, precision, edit_with)
        with inference(self.model):
            return Activations(*self._run(images, precision))

    def stream(
        self,
        loader: Iterable[Any],
        *,
        precision: Precision = "fp32",
        progress: bool = False,
        edit_with: InputEditor | None = None,
    ) -> Iterator[Activations]:
        """Run a loader's batches through the network, one at a time, and yield their activations on the CPU.

        Args:
            loader: yields batches of images, pairs of images and labels, or mappings with `image(s)` and `label(s)`.
            precision: `bf16` runs the body in bfloat16 and the head in float32.
            progress: whether to show a progress bar on standard error.
            edit_with: changes the images for a second look, as `Detector.input_edit` does.
        """
        with shown(quiet=not progress) as listener:
            listener.phase("network", len(loader) if isinstance(loader, Sized) else None)
            for batch in loader:
                images, labels = _unpack(batch)
                # Entered per batch: a generator that is abandoned half-way must not leave the network in another mode.
                acts = self.split(images, precision=precision, edit_with=edit_with)
                listener.advance(1)
                yield replace(acts.to("cpu"), labels=labels)

    def extract(
        self,
        loader: Iterable[Any],
        *,
        precision: Precision = "fp32",
        progress: bool = False,
        edit_with: InputEditor | None = None,
    ) -> Activations:
        """Run a whole loader through the network and collect the activations; the arguments are those of `stream`."""
        return Activations.concat(self.stream(loader, precision=precision, progress=progress, edit_with=edit_with))

    def free_layout(self, *, weights: bool) -> None:
        """Let the first batch decide how images lie in memory, and the weights too where nobody else has them in use."""
        self._layout, self._moves_weights = None, weights

    @contextmanager
    def headless(self) -> Iterator[nn.Module]:
        """Give the network without its final layer: inside the block it returns the features."""
        parent_name, _, name = self.layer.rpartition(".")
        parent, linear = self.model.get_submodule(parent_name), self.linear
        setattr(parent, name, nn.Identity())
        try:
            yield self.model
        finally:
            setattr(parent, name, linear)

    def _split_twice(self, images: Tensor, precision: Precision, editor: InputEditor) -> Activations:
        seen: list[Activations] = []
        if not images.is_floating_point():
            dtype = str(images.dtype).removeprefix("torch.")
            raise InputError(f"{type(editor).__name__}: images must be floating point to be changed, got {dtype}")

        def network(batch: Tensor) -> tuple[Tensor, Tensor]:
            # A copy, as some networks normalise their input in place.
            features, logits = self._run(batch.clone(), precision)
            if batch.requires_grad and not logits.requires_grad:
                raise ModelError(
                    f"{type(editor).__name__}: the network gives no gradient for its images; use a method of one forward pass"
                )
            seen.append(Activations(features, logits))
            return features, logits

        with differentiable(self.model):
            changed = editor.perturb(network, images.detach().clone()).detach()
        if changed.shape != images.shape:
            raise InputError(
                f"{type(editor).__name__}: perturb must keep the images' shape {tuple(images.shape)}, got {tuple(changed.shape)}"
            )
        # The editor's look at the images as they are is the first pass: there is no need for another.
        plain = seen[0] if seen else self.split(images, precision=precision)
        return replace(plain, edited=self.split(changed, precision=precision))

    def _run(self, images: Tensor, precision: Precision) -> tuple[Tensor, Tensor]:
        parameter = next(self.model.parameters())
        images = images.to(parameter.device, parameter.dtype if images.is_floating_point() else None)
        if self._layout is None:
            self._layout = best_layout(self.model, images[:2], weights=self._moves_weights)
        images = images.to(memory_format=self._layout)
        seen: list[tuple[Tensor, Tensor]] = []

        def remember(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            seen.append((inputs[0], output))

        handle = self.linear.register_forward_hook(remember)
        try:
            with _autocast(images.device, precision):
                self.model(images)
        finally:
            handle.remove()
        if not seen:
            raise ModelError(
                f"SplitModel: the layer {self.layer!r} was not used for this batch; name the final layer with layer="
            )
        features, logits = seen[-1]
        if features.ndim != 2 or len(features) != len(images):
            raise ModelError(
                f"SplitModel: the features at {self.layer!r} must be one row per image, got shape {tuple(features.shape)}"
            )
        if logits.dtype != torch.float32:
            # A head in low precision moves scores by up to a third of their spread: do it again in float32, it is cheap.
            linear = self.linear
            logits = nn.functional.linear(
                features.float(), linear.weight.float(), None if linear.bias is None else linear.bias.float()
            )
        return features, logits


def unwrap(model: nn.Module) -> nn.Module:
    """Look through DataParallel, DistributedDataParallel and torch.compile."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def best_layout(model: nn.Module, images: Tensor, *, weights: bool) -> torch.memory_format:
    """Find how a network's images, and its weights if they may be moved, best lie in memory: channels last where it can.

    That makes convolutions about a third faster on a CPU. A network that flattens with `.view` cannot run so, and gets
    contiguous memory.
    """
    if images.ndim != 4:
        return torch.preserve_format
    try:
        if weights:
            model.to(memory_format=torch.channels_last)
        with inference(model):
            model(images.to(memory_format=torch.channels_last))
    except RuntimeError:
        if weights:
            model.to(memory_format=torch.contiguous_format)
        return torch.contiguous_format
    return torch.channels_last


def fingerprint(model: nn.Module) -> str:
    """Hash a network's parameters and buffers: names, shapes, types and bytes."""
    digest = hashlib.sha256()
    for name, value in sorted(unwrap(model).state_dict().items()):
        tensor = value.detach().cpu().contiguous()
        digest.update(f"{name}:{tuple(tensor.shape)}:{tensor.dtype};".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _named_layer(model: nn.Module, layer: str) -> str:
    linears = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if layer not in linears:
        raise ModelError(
            f"SplitModel: layer must name an nn.Linear of the model, got {layer!r}; it has {', '.join(linears[-5:]) or 'none'}"
        )
    return layer


def _find_layer(model: nn.Module, example: Tensor | None) -> str:
    linears = {module: name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    if not linears:
        raise ModelError(
            f"SplitModel: {type(model).__name__} has no nn.Linear, so no head to split off;"
            " replace its classifier by pooling and an nn.Linear (a 1x1 convolution becomes one by reshaping its weight)"
        )
    problem: Exception | None = None
    for images in [example] if example is not None else _examples(model):
        try:
            return _final_of(model, images, linears)
        except ModelError:
            raise
        except Exception as error:  # whatever a network says to an input it does not take; the next size may suit
            problem = problem or error
    reason = str(problem).strip().splitlines()[0][:200] if problem else "no input could be guessed"
    raise ModelError(
        f"SplitModel: {type(model).__name__} could not be probed ({reason}); give example=, one batch of its images, or layer="
    )


def _final_of(model: nn.Module, images: Tensor, linears: Mapping[nn.Linear, str]) -> str:
    """Run once and return the name of the linear layer whose output is the model's."""
    outputs: list[tuple[str, Tensor]] = []
    handles = [
        module.register_forward_hook(lambda _m, _i, output, name=name: outputs.append((name, output)))
        for module, name in linears.items()
    ]
    try:
        with inference(model):
            parameter = next(model.parameters())
            result = logits_of(model(images.to(parameter.device, parameter.dtype)))
    finally:
        for handle in handles:
            handle.remove()
    for name, output in reversed(outputs):
        if output.shape == result.shape and (output is result or torch.equal(output, result)):
            return name
    raise ModelError(
        f"SplitModel: no nn.Linear of {type(model).__name__} gives the model's output as it is (shape {tuple(result.shape)}):"
        " it has another classifier (SqueezeNet: a convolution) or changes the logits afterwards; end it in one, or name it with layer="
    )


def _examples(model: nn.Module) -> Iterator[Tensor]:
    config = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None) or {}
    first = next((module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)), None)
    if isinstance(first, nn.Linear):
        yield torch.zeros(2, first.in_features)
    channels = first.in_channels if isinstance(first, nn.Conv2d) else 3
    sizes = [(channels, size, size) for size in SIZES]
    if isinstance(config, Mapping) and "input_size" in config:
        # timm says what a network takes; a transformer of 384 pixels takes nothing else.
        sizes.insert(0, tuple(config["input_size"]))
    generator = torch.Generator().manual_seed(0)
    for shape in sizes:
        yield torch.rand((2, *shape), generator=generator)


def logits_of(output: Any) -> Tensor:
    """Find the logits in what a network returns."""
    if isinstance(output, Tensor):
        return output
    logits = getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    if isinstance(output, tuple | list) and output and isinstance(output[0], Tensor):
        return output[0]
    raise ModelError(
        f"SplitModel: the model must return logits as a tensor, got {type(output).__name__}; wrap it so that it does"
    )


def _autocast(device: torch.device, precision: Precision) -> AbstractContextManager[Any]:
    if precision not in ("fp32", "bf16"):
        raise InputError(f"SplitModel: precision must be fp32 or bf16, got {precision!r}")
    return nullcontext() if precision == "fp32" else torch.autocast(device.type, torch.bfloat16)


def _unpack(batch: Any) -> tuple[Tensor, Tensor | None]:
    if isinstance(batch, Tensor):
        return batch, None
    if isinstance(batch, Mapping):
        images = next((batch[key] for key in ("images", "image", "pixel_values") if key in batch), None)
        labels = next((batch[key] for key in ("labels", "label") if key in batch), None)
        if isinstance(images, Tensor):
            return images, labels
    if isinstance(batch, tuple | list) and batch and isinstance(batch[0], Tensor):
        return batch[0], batch[1] if len(batch) > 1 else None
    raise DataError(
        f"SplitModel: a batch must be images, (images, labels) or a mapping with 'images', got {type(batch).__name__}"
    )

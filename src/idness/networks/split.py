"""Any torch classifier as features and a head that computes logits from them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from idness.core.errors import DataError, ModelError
from idness.core.types import Activations, Head, InputEditor
from idness.networks.engines import EngineRunner, Precision
from idness.networks.head_search import probe, recorded, search_head
from idness.networks.modules import as_input, call, copied, differentiable, inference, unwrap


class SplitModel:
    """Any torch classifier, split into features and a head.

    The head is the linear layer whose output is the model's output, found by running a copy of the model once. A softmax, a
    sigmoid, a factor or constants after it are inverted, and several heads whose logits are averaged become one; other endings
    are rejected. Every batch is checked: the network's output must follow from features and head. Hooks exist only during a
    call and affect only its thread, and the network is not changed.

    A network with a single output z is a binary classifier with the two logits -z / 2 and z / 2.

    Args:
        model: the classifier; wrappers (DataParallel, DistributedDataParallel, torch.compile) are removed.
        layer: the dotted name of the final layer; found automatically by default.
        example: a batch of images for the search, if the network expects unusual input.
        multi_label: whether an image may have several labels or none; by default true if the network ends in a sigmoid or
            declares it by `config.problem_type`, as in Hugging Face transformers.
        engine: `eager`, `onnxruntime`, `openvino` or `auto`; `None` runs the unchanged network.

    Raises:
        ModelError: if no head is found.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> split = SplitModel(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
        >>> split.layer, split.width, split.classes
        ('2', 3, 2)
        >>> split.extract([torch.rand(5, 4)]).logits.shape
        torch.Size([5, 2])
    """

    def __init__(
        self,
        model: nn.Module,
        layer: str | None = None,
        *,
        example: Tensor | None = None,
        multi_label: bool | None = None,
        engine: str | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ModelError(f"SplitModel: model must be a torch nn.Module, got {type(model).__name__}")
        self.model = unwrap(model)
        self._multi_label = multi_label
        self.runner = None if engine is None else EngineRunner(engine)
        self._recipe, self._example, steps = search_head(self.model, example, layer)
        self._sizes = steps[0].weight.shape[0], sum(step.weight.shape[1] for step in steps)

    @property
    def layer(self) -> str:
        """The name of the final layer, or of several whose logits are added, joined by `+`."""
        return self._recipe.layer

    @property
    def ending(self) -> str:
        """A short description of what follows the final layer; empty if nothing does."""
        return self._recipe.describe()

    @property
    def head(self) -> Head:
        """The head that computes logits from features, with the current weight and bias in float32."""
        # Weights may be computed, as in a cosine classifier, and exist only while the network runs.
        head = self._recipe.head(self._recipe.steps(*probe(self.model, self._example[:2])))
        if head.classes > 1:
            return replace(head, multi_label=self.multi_label)
        return Head(_two_of(head.weight, 0), _two_of(head.offset, 0))

    @property
    def multi_label(self) -> bool:
        """Whether an image may have several labels or none."""
        if self._multi_label is not None or self._sizes[0] == 1:
            return bool(self._multi_label) and self._sizes[0] > 1
        declared = (getattr(getattr(module, "config", None), "problem_type", "") for module in self.model.modules())
        return self._recipe.ending == "sigmoid" or "multi_label_classification" in declared

    @property
    def classes(self) -> int:
        """The number of classes."""
        return max(2, self._sizes[0])

    @property
    def width(self) -> int:
        """The number of features."""
        return self._sizes[1]

    @property
    def device(self) -> torch.device:
        """The network's device."""
        return next((value.device for value in self.model.parameters()), torch.device("cpu"))

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the network's input."""
        return as_input(self.model, torch.zeros(())).dtype

    def copy(self) -> SplitModel:
        """Return the same split of a copy of the network that shares only its parameters."""
        other = copy.copy(self)
        other.model, other.runner, other._multi_label = copied(self.model), None, self.multi_label
        return other

    def run(self, images: Tensor, precision: Precision = "fp32") -> tuple[Tensor, Tensor]:
        """Return features and logits computed by the unchanged network, whatever the engine."""
        with inference(self.model):
            return self.look(as_input(self.model, images), precision)

    def split(
        self, images: Tensor, *, precision: Precision = "fp32", edit_with: InputEditor | None = None
    ) -> Activations:
        """Return the activations of one batch, including those of the images edited by `edit_with`, if given."""
        if edit_with is not None:
            return self._split_twice(images, precision, edit_with)
        if self.runner is not None and precision == "fp32":
            return Activations(*self.runner.run(self, as_input(self.model, images)))
        return Activations(*self.run(images, precision))

    def extract(
        self,
        loader: Iterable[Any],
        *,
        precision: Precision = "fp32",
        edit_with: InputEditor | None = None,
    ) -> Activations:
        """Run a whole loader through the network and return the activations on the CPU.

        Args:
            loader: an iterable of batches: images, pairs of images and labels, or mappings with `image(s)` and `label(s)`.
            precision: `bf16` runs the body in bfloat16 and the head in float32.
            edit_with: an editor of the images for a second pass, such as `Detector.input_edit`.
        """
        parts = []
        for images, labels in map(unpack, loader):
            acts = self.split(images, precision=precision, edit_with=edit_with)
            parts.append(replace(acts.to("cpu"), labels=labels))
        return Activations.concat(parts)

    def _split_twice(self, images: Tensor, precision: Precision, editor: InputEditor) -> Activations:
        seen: list[Activations] = []

        def network(batch: Tensor) -> tuple[Tensor, Tensor]:
            # Copied, since some networks normalise their input in place.
            features, logits = self.look(as_input(self.model, batch.clone()), precision)
            if batch.requires_grad and not logits.requires_grad:
                name = type(editor).__name__
                raise ModelError(f"{name}: the network has no gradient for its input; use a method with one pass")
            seen.append(Activations(features, logits))
            return features, logits

        with differentiable(self.model):
            changed = editor.perturb(network, images.detach().clone()).detach()
        # The editor's pass over the unedited images is the first pass.
        plain = seen[0] if seen else self.split(images, precision=precision)
        return replace(plain, edited=self.split(changed, precision=precision))

    def look(self, images: Tensor, precision: Precision = "fp32") -> tuple[Tensor, Tensor]:
        """Return features and logits of images in the network's device and precision, in its current mode.

        Raises:
            ModelError: if the network's output does not follow from features and head.
        """
        recipe = self._recipe
        autocast = nullcontext() if precision == "fp32" else torch.autocast(images.device.type, torch.bfloat16)
        with recorded(self.model, recipe.keys()) as seen, autocast:
            output = call(self.model, images)
        steps = recipe.steps(seen, output)
        features, logits = torch.cat([step.features for step in steps], dim=1), recipe.logits(steps)
        # While exporting, there are no values to compare, and len() would fix the batch size.
        if not torch.compiler.is_exporting() and not recipe.explains(steps, output):
            after = f" with {recipe.describe()}" if recipe.describe() else ""
            raise ModelError(
                f"SplitModel: the network's output for these images does not follow from its layer {self.layer!r}{after};"
                " pass example=, a batch of images"
            )
        return features, logits if logits.shape[1] > 1 else _two_of(logits, 1)


def final_linear(
    model: nn.Module, layer: str | None = None, *, example: Tensor | None = None
) -> tuple[nn.Module, str, nn.Linear]:
    """Return the network without wrappers, the name of its final linear layer (`layer`, if given), and the layer.

    Raises:
        ModelError: if the head is not a single `nn.Linear` in the network.
    """
    model = unwrap(model)
    name = layer or SplitModel(model, example=example).layer
    found = dict(model.named_modules()).get(name)
    if not isinstance(found, nn.Linear):
        raise ModelError(f"the network's head must be a single nn.Linear, got {name!r}")
    return model, name, found


def unpack(batch: Any) -> tuple[Tensor, Tensor | None]:
    """Return the images of a loader's batch, and its labels if it has any."""
    if isinstance(batch, Tensor):
        return batch, None
    if isinstance(batch, Mapping):
        images = next((batch[key] for key in ("images", "image", "pixel_values") if key in batch), None)
        labels = next((batch[key] for key in ("labels", "label") if key in batch), None)
        if isinstance(images, Tensor):
            return images, labels
    if isinstance(batch, tuple | list) and batch and isinstance(batch[0], Tensor):
        return batch[0], batch[1] if len(batch) > 1 else None
    kind = type(batch).__name__
    raise DataError(f"SplitModel: a batch must be images, (images, labels) or {{'images': images}}, got {kind}")


def _two_of(yes: Tensor, dim: int) -> Tensor:
    """Return two logits for one output: the softmax of (-z / 2, z / 2) is the sigmoid of z, without a bias for either class."""
    return torch.cat([-0.5 * yes, 0.5 * yes], dim=dim)

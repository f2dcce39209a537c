"""Any torch classifier, seen as features and a head that makes logits of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from threading import Lock
from typing import Any, Literal

import torch
from torch import Tensor, nn

from idness.core.errors import InputError, ModelError
from idness.core.progress import shown
from idness.core.types import Activations, Head, InputEditor
from idness.networks.batches import unpacked
from idness.networks.engines.driver import Driver
from idness.networks.heads import at_rest, check_named, parts_of, shape_of, two_of
from idness.networks.identity import fingerprint as fingerprint
from idness.networks.identity import unwrap as unwrap
from idness.networks.layout import best_layout as best_layout
from idness.networks.loading import load_model as load_model
from idness.networks.loading import load_weights as load_weights
from idness.networks.modes import differentiable
from idness.networks.modes import inference as inference
from idness.networks.probing import NotProbedError, as_input, call, copied, find_recipe, probe, says_multi_label
from idness.networks.recovery import Recipe, explain
from idness.networks.watching import Step, is_function, watching

Precision = Literal["fp32", "bf16"]
_DECIDING = Lock()
"""Held while a network's memory is laid out, for which others that run it wait."""


class SplitModel:
    """Shows any torch classifier as features and a head.

    The head is the linear layer whose output is the model's output, found by running a copy of it once. A softmax, a
    sigmoid, a factor or constants behind it are undone, and several heads whose logits are averaged are one; what cannot be
    undone is refused. That the network's output follows from features and head is checked with every batch. Hooks live
    only inside one call and hear only its own thread, and the network is left as it was.

    A network with a single output says yes or no; it is shown with the two logits -z / 2 and z / 2.

    Args:
        model: the classifier; wrappers (DataParallel, DistributedDataParallel, torch.compile) are looked through.
        layer: the final layer's dotted name, where it should not be searched.
        example: a batch of images for the search, where the network takes unusual input.
        multi_label: whether an image may get several labels, or none; where not given, it may if the network ends in a
            sigmoid, or says so as Hugging Face's do, by `config.problem_type`.
        engine: what runs it: `eager`, `compiled`, `onnxruntime`, `openvino`, or `auto`, which measures on the first batch; the
            network as it is where none is named.
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
        self._layer, self._example, self._multi_label = layer, example, multi_label
        self._recipe: Recipe | None = None
        self._shape: tuple[int, int] | None = None
        self._layout: torch.memory_format | None = torch.preserve_format
        self._moves_weights = False
        self.driver = None if engine is None else Driver(engine)
        if layer is not None:
            check_named(self.model, layer)
        if layer is None or example is not None:
            self._find()

    @property
    def layer(self) -> str:
        """The name of the final layer, or of several whose logits are added up, joined by `+`."""
        return self._recipe.layer if self._recipe is not None else self._layer or ""

    @property
    def ending(self) -> str:
        """What the network does to the output of its final layer, in few words; nothing where it returns it as it is."""
        return self._found().describe()

    @property
    def linear(self) -> nn.Linear:
        """The final linear layer itself, for those who replace it; an error where the head is another or has several parts."""
        found = dict(self.model.named_modules()).get(self.layer)
        if not isinstance(found, nn.Linear):
            raise ModelError(f"the network's head is {self.layer!r}, but one nn.Linear is needed here")
        return found

    @property
    def head(self) -> Head:
        """What makes the logits of the features: weight and bias as they are now, in float32."""
        head = self._found().head(self._weights())
        if head.classes > 1:
            return replace(head, multi_label=self.multi_label)
        return Head(two_of(head.weight, 0), two_of(head.offset, 0))

    @property
    def multi_label(self) -> bool:
        """Whether an image may get several labels, or none; a single output says yes or no to one."""
        if self._multi_label is not None or self._sizes()[0] == 1:
            return bool(self._multi_label) and self._sizes()[0] > 1
        return self._found().ending == "sigmoid" or says_multi_label(self.model)

    @property
    def classes(self) -> int:
        """The number of classes."""
        return max(2, self._sizes()[0])

    @property
    def width(self) -> int:
        """The number of features."""
        return self._sizes()[1]

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next((value.device for value in self.model.parameters()), torch.device("cpu"))

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the network's input."""
        return as_input(self.model, torch.zeros(())).dtype

    def copy(self) -> SplitModel:
        """Give the same over a copy of the network, which has its parameters in common with it and nothing else."""
        other = SplitModel(copied(self.model), self.layer, multi_label=self.multi_label)
        other._recipe, other._example = self._found(), self._example
        return other

    def look(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Run images as the network takes them, in the mode in which it is, and give features and logits."""
        return self._watched(images, "fp32")

    def split(
        self, images: Tensor, *, precision: Precision = "fp32", edit_with: InputEditor | None = None
    ) -> Activations:
        """Run one batch through the network, and a second time as an editor changes it, if one is given."""
        if edit_with is not None:
            return self._split_twice(images, precision, edit_with)
        if self.driver is not None and precision == "fp32":
            return Activations(*self.driver.run(self, as_input(self.model, images)))
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
                images, labels = unpacked(batch)
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

    def laid_out(self, images: Tensor) -> Tensor:
        """Bring images to the network's device and precision, and to the order in memory in which it is fastest."""
        images = as_input(self.model, images)
        with _DECIDING:
            if self._layout is None:
                self._layout = best_layout(self.model, images[:2], weights=self._moves_weights)
        return images.to(memory_format=self._layout)

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
        return self._watched(self.laid_out(images), precision)

    def _watched(self, images: Tensor, precision: Precision) -> tuple[Tensor, Tensor]:
        recipe = self._recipe
        wanted = (Recipe(parts_of(self.layer)) if recipe is None else recipe).wanted()
        with watching(self.model, wanted) as seen, _autocast(images.device, precision):
            output = call(self.model, images)
        if recipe is None:
            recipe = self._settled(seen, output)
        steps = recipe.steps(seen)
        features, logits = recipe.features(steps), recipe.logits(steps)
        # What is traced has no values to compare, and asking for its length would fix it.
        if not torch.compiler.is_exporting():
            self._check(recipe, steps, images, features, output)
        return features, logits if logits.shape[1] > 1 else two_of(logits, 1)

    def _check(self, recipe: Recipe, steps: Sequence[Step], images: Tensor, features: Tensor, output: Any) -> None:
        """Refuse features that are not one row per image, and an output that does not follow from them."""
        if features.ndim != 2 or len(features) != len(images):
            raise ModelError(
                f"SplitModel: the features at {self.layer!r} must be one row per image, got shape {tuple(features.shape)}"
            )
        if not recipe.explains(steps, output):
            raise ModelError(
                f"SplitModel: the network's output for these images is not what its layer {self.layer!r} gives"
                f"{f' with {recipe.describe()}' if recipe.describe() else ''}, as it was for those it was probed with;"
                " give example=, a batch of its images"
            )

    def _find(self) -> None:
        recipe, self._example, steps = find_recipe(self.model, self._example, self._layer)
        self._recipe, self._shape = recipe, shape_of(steps)

    def _found(self) -> Recipe:
        """Give the recipe; where a layer was named and no image has run yet, noise shows what becomes of its output."""
        if self._recipe is None:
            try:
                self._find()
            except NotProbedError:
                # Taken at its word; the first batch shows whether its output is the network's.
                self._recipe = Recipe(parts_of(self.layer))
        assert self._recipe is not None
        return self._recipe

    def _settled(self, seen: list[Step], output: Any) -> Recipe:
        """Find out from the first batch what becomes of the output of a layer that was named."""
        steps = Recipe(parts_of(self.layer)).steps(seen)
        recipe = explain(seen, output, self.layer)
        if recipe is None:  # one image may be too few to tell
            return self._found()
        self._recipe, self._shape = recipe, shape_of(steps)
        return recipe

    def _weights(self) -> list[Step]:
        """Give the parts of the head with the weights that they have now."""
        recipe = self._found()
        if not any(is_function(part.key) for part in recipe.parts):
            return [at_rest(part.key, self.model.get_submodule(part.key)) for part in recipe.parts]
        # Weights that are computed, as those of a cosine classifier, show only when the network runs.
        assert self._example is not None
        return recipe.steps(probe(self.model, self._example)[0])

    def _sizes(self) -> tuple[int, int]:
        """Give the numbers of outputs and features; a layer that was named tells without running."""
        if self._shape is None:
            named = [part.key for part in parts_of(self.layer)]
            if any(map(is_function, named)):
                self._shape = shape_of(self._weights())
            else:
                self._shape = shape_of([at_rest(key, self.model.get_submodule(key)) for key in named])
        return self._shape


def _autocast(device: torch.device, precision: Precision) -> AbstractContextManager[Any]:
    if precision not in ("fp32", "bf16"):
        raise InputError(f"SplitModel: precision must be fp32 or bf16, got {precision!r}")
    return nullcontext() if precision == "fp32" else torch.autocast(device.type, torch.bfloat16)

"""The base class of detectors: fit on in-distribution activations, then score images; higher is more in-distribution."""

from __future__ import annotations

import dataclasses
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, final

import torch
from torch import Tensor

from idness.core.errors import InputError, NotFittedError, StoreError
from idness.core.options import check_options, one_of, write_method
from idness.core.types import (
    Activations,
    Head,
    InputEditor,
    check_acts,
    check_edited,
    check_labelling,
    check_labels,
    check_match,
    warn_signed,
)
from idness.detectors.kernels import sharing
from idness.detectors.readouts import readout_for

T = TypeVar("T")
LARGEST = torch.finfo(torch.float32).max
FASTER = (
    ("shape", "shaped_logits"),
    ("edit", "shaped_logits"),
    ("shaped_logits", "rate_many"),
    ("rate", "rate_many"),
    ("learn", "learn_many"),
)
"""Pairs of hooks; the second is an optional faster implementation of the first for several settings."""


class Detector(ABC):
    """A detector of OOD images, which scores how likely images are from the distribution that a network was trained on.

    A method is a dataclass whose fields are its options. It implements `rate` and, if it learns anything, `learn`, or
    `rate_many` and `learn_many` if several settings can share work. Learned state is stored as tensors in attributes
    whose names end in an underscore.

    >>> from idness import Activations, Head, build
    >>> head = Head(torch.eye(2))
    >>> features = torch.tensor([[4.0, 0.0], [1.0, 1.0]])
    >>> build("mls").fit(head).score(Activations(features, head(features)))
    tensor([4., 1.])
    """

    formula: ClassVar[str] = ""
    """The score in LaTeX; `docs/methods` defines the symbols."""
    assumes: ClassVar[str] = ""
    """The assumption behind the score, in a few words."""
    needs_train: ClassVar[bool] = False
    """Whether `fit` requires activations of training images."""
    needs_labels: ClassVar[bool] = False
    """Whether those activations require labels."""
    needs_val: ClassVar[bool] = False
    """Whether `fit` prefers validation images; without them it uses training images."""
    remembers: ClassVar[bool] = False
    """Whether the method memorizes the images it is fitted on, so that its scores on them are too optimistic to compare."""
    uses_head: ClassVar[bool] = False
    """Whether scores depend on the head, so that activations of another network are rejected."""
    assumes_nonnegative: ClassVar[bool] = False
    """Whether scores are meaningless for negative features; `fit` and `score` warn about them."""
    takes_labels: ClassVar[bool] = False
    """Whether the score applies to multi-label networks."""
    of_run: ClassVar[bool] = False
    """Whether the method reads files of a training run; it is used only if a run is named."""
    forward_passes: ClassVar[int] = 1
    """Number of forward passes per image; more than one for subclasses of `InputEdit`."""
    backward_passes: ClassVar[int] = 0
    """Number of backward passes per image."""
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {}
    """Values of each option that a search tries."""
    other: ClassVar[Mapping[str, Any]] = {}
    """Another valid value for each option outside the grid; contract tests check that it changes the scores."""
    rows: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Variants that a comparison lists separately, with their options; empty if there is only the method itself."""
    listed_as: ClassVar[str]
    """Name of the entry point of a plug-in; built-in methods use the class name in lower case."""

    head_: Head
    _learned_with: object
    """An object shared by detectors that were fitted together; only these may share work when scoring."""

    _learned_rows: Tensor | None = None
    _chosen_rows: Tensor | None = None
    """Digests of the rows that the detector was fitted and chosen on, on which a guard must not be calibrated."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        # A class that overrides a hook must not inherit the parent's faster implementation of the old one.
        for hook, faster in FASTER:
            if hook in vars(cls) and faster not in vars(cls):
                setattr(cls, faster, next(vars(base)[faster] for base in reversed(cls.__mro__) if faster in vars(base)))

    def __post_init__(self) -> None:
        check_options(self)

    if TYPE_CHECKING:  # learned attributes cannot be declared: in a dataclass they would become options

        def __setattr__(self, name: str, value: Any) -> None: ...

    def __getattr__(self, name: str) -> Tensor:
        if name.endswith("_") and not name.startswith("_") and not self.fitted:
            raise _not_fitted(self)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    @final
    def fit(self, head: Head, train: Activations | None = None, *, val: Activations | None = None) -> Self:
        """Fit the detector to in-distribution activations and return it.

        Args:
            head: final linear layer of the network.
            train: activations of training images, with labels for methods that need them.
            val: activations of validation images; methods with a threshold or temperature prefer them.

        Raises:
            InputError: if required activations or labels are missing, or do not match the head.
        """
        fit_many([self], head, train, val=val)
        return self

    @final
    def score(self, acts: Activations) -> Tensor:
        """Return the ID-ness (N,) of images: finite, higher is more in-distribution."""
        return score_many([self], acts)[0]

    @final
    def chosen_on(self, *parts: Activations) -> Self:
        """Record activations on which this detector was chosen, so that no guard is calibrated on them; return the detector."""
        known = [] if self._chosen_rows is None else [self._chosen_rows]
        self._chosen_rows = torch.cat([*known, *(part.digests for part in parts)])
        return self

    @final
    def seen_rows(self) -> Tensor:
        """Return the digests of all rows that the detector was fitted or chosen on; empty for a fixed method that learns nothing."""
        parts = [rows for rows in (self._learned_rows, self._chosen_rows) if rows is not None]
        found = torch.cat(parts).unique() if parts else torch.zeros(0, dtype=torch.long)  # type: ignore[no-untyped-call]
        return found[found != 0]

    @property
    @final
    def name(self) -> str:
        """Name on the command line and in files."""
        cls = type(self)
        return str(vars(cls).get("listed_as", cls.__name__.lower()))  # not inherited

    @classmethod
    def summary(cls) -> str:
        """Return the first line of the class docstring, or an empty string."""
        return next(iter((cls.__doc__ or "").strip().splitlines()), "")

    @classmethod
    def paper(cls) -> str:
        """Return the first paragraph of the module docstring, which names the method and cites its paper."""
        return " ".join((sys.modules[cls.__module__].__doc__ or "").strip().partition("\n\n")[0].split())

    @classmethod
    def passes(cls) -> str:
        """Return the number of forward passes per image, and of backward passes if any, such as `2 + 1`."""
        return f"{cls.forward_passes} + {cls.backward_passes}" if cls.backward_passes else str(cls.forward_passes)

    @property
    @final
    def fitted(self) -> bool:
        """Whether `fit` has run."""
        return "head_" in self.__dict__

    @property
    def input_edit(self) -> InputEditor | None:
        """The object that perturbs images for a second pass; `None` if one pass suffices."""
        return None

    def options(self) -> dict[str, Any]:
        """Return all options as plain values."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]

    @final
    def config(self) -> dict[str, Any]:
        """Return the name and options, from which `idness.build` makes the same detector."""
        return {"method": self.name, "options": self.options()}

    @final
    def label(self) -> str:
        """Return name and options as on the command line, such as `scale(percentile=85)`; the default readout is omitted."""
        shown = {key: value for key, value in self.options().items() if (key, value) != ("readout", "energy")}
        return write_method(self.name, shown)

    @final
    def variants(self, grid: Mapping[str, Sequence[Any]] | None = None) -> list[Self]:
        """Return an unfitted copy for every combination in the search grid; other options keep their values."""
        chosen = self.grid if grid is None else grid
        copy: Any = self
        settings = (dict(zip(chosen, values, strict=True)) for values in product(*chosen.values()))
        return [dataclasses.replace(copy, **setting) for setting in settings]

    @final
    def state(self) -> dict[str, Tensor]:
        """Return the learned state, without the head, as named tensors."""
        if not self.fitted:
            raise _not_fitted(self)
        own = {key: torch.as_tensor(value) for key, value in vars(self).items() if key.endswith("_") and key != "head_"}
        for prefix, part in self.inner():
            own |= {f"{prefix}.{key}": value for key, value in part.state().items()}
        return own

    @final
    def load_state(self, head: Head, state: Mapping[str, Tensor]) -> Self:
        """Restore a learned state, given the head of the same network, and return the detector."""
        self._forget()
        remaining = dict(state)
        for key in [key for key in state if "." not in key and key.endswith("_")]:
            setattr(self, key, remaining.pop(key))
        for prefix, part in self.inner():  # what was learned may determine the parts
            own = [key for key in remaining if key.startswith(f"{prefix}.")]
            part.load_state(head, {key.removeprefix(f"{prefix}."): remaining.pop(key) for key in own})
        for key in remaining:
            raise StoreError(f"{type(self).__name__}: has no learned value {key!r}; is the file damaged?")
        self.head_, self._learned_with = head, object()
        return self

    @final
    def to(self, device: torch.device | str) -> Self:
        """Move the learned state to a device and return the detector."""
        for key, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, key, value.to(device))
        if self.fitted:
            self.head_ = self.head_.to(device)
        for _, part in self.inner():
            part.to(device)
        return self

    def inner(self) -> Iterator[tuple[str, Detector]]:
        """Yield the name and the detector of each part of a combined detector."""
        return iter(())

    # Hooks: a method implements either `learn` or `learn_many`, and either `rate` or `rate_many`.

    def learn(self, head: Head, train: Activations, val: Activations) -> None:
        """Set the learned attributes; if only `train` or only `val` was given, both arguments are the given one."""

    def rate(self, acts: Activations) -> Tensor:
        """Return the scores (N,); use torch operations that ONNX supports."""
        return self.rate_many([self], acts)[0]

    @classmethod
    def learn_many(cls, detectors: Sequence[Self], head: Head, train: Activations, val: Activations) -> None:
        """Fit several detectors that differ in their options."""
        for detector in detectors:
            detector.learn(head, train, val)

    @classmethod
    def rate_many(cls, detectors: Sequence[Self], acts: Activations) -> list[Tensor]:
        """Return the scores of several detectors that were fitted together."""
        return [detector.rate(acts) for detector in detectors]

    def _forget(self) -> None:
        for key in [key for key in vars(self) if key.endswith("_")]:
            delattr(self, key)


@dataclass(kw_only=True)
class Enhancer(Detector):
    """A detector that edits the features or the head, and computes a score from the new logits."""

    uses_head = takes_labels = True

    readout: str = one_of("energy", "msp", "max_logit")

    def shape(self, features: Tensor) -> Tensor:
        """Return edited features (N, D); must not work in place."""
        return features

    def edit(self, head: Head) -> Head:
        """Return an edited head."""
        return head

    def shaped_logits(self, acts: Activations) -> Tensor:
        """Return the logits of the edited network."""
        return self.edit(self.head_)(self.shape(acts.features))

    @final
    def read(self, logits: Tensor) -> Tensor:
        """Return the score (N,) of logits."""
        return readout_for(self.head_, self.readout)(logits)

    def rate(self, acts: Activations) -> Tensor:
        return self.read(self.shaped_logits(acts))


class InputEdit(Detector):
    """A detector that also runs the network on a perturbed copy of each image.

    `learn` and `rate` find the activations of the perturbed images in `acts.edited`. Each such method needs its own passes
    of the network, so a comparison includes it only if it is named.
    """

    forward_passes = 2
    backward_passes = 1
    changed_by: ClassVar[Sequence[str]] = ()
    """Options that determine the perturbation; the search grid contains only other options, which need no further pass."""

    @abstractmethod
    def perturb(self, network: Callable[[Tensor], tuple[Tensor, Tensor]], images: Tensor) -> Tensor:
        """Return perturbed images; must not work in place.

        `network` returns features and logits with gradients; its first call must be on the images themselves.
        """

    @property
    @final
    def input_edit(self) -> InputEditor:
        return self

    @final
    def edit_key(self) -> str:
        """Return a key of the perturbation; detectors with equal keys share the perturbed images."""
        options = self.options()
        return json.dumps([self.name, {name: options[name] for name in self.changed_by}], sort_keys=True)


def input_gradient(value: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """Return the gradient of each image's value with respect to the image, without gradients for parameters."""
    with torch.enable_grad():
        inputs = images.detach().clone().requires_grad_()
        (gradient,) = torch.autograd.grad(value(inputs).sum(), inputs)
    return gradient


def fit_many(
    detectors: Sequence[Detector], head: Head, train: Activations | None = None, *, val: Activations | None = None
) -> None:
    """Fit several detectors; those of the same method share work."""
    if not isinstance(head, Head):
        raise InputError(
            f"fit: head must be a Head, got {type(head).__name__}; pass SplitModel(model).head or Head(weight, bias)"
        )
    for what, acts in (("train", train), ("val", val)):
        if acts is not None and detectors:
            check_acts(detectors[0], what, acts, head)
            check_match(detectors[0], what, acts, head)
    seen: list[Any] = [acts for acts in (train, val) if acts is not None] or [None]
    with sharing():
        for group in _grouped(detectors, type):
            method, first = type(group[0]), group[0]
            check_labelling(first, head, method.takes_labels)
            what, acts = ("val", val) if method.needs_val and val is not None else ("train", train)
            if acts is None and method.needs_train:
                raise InputError(f"{method.__name__}: fit needs training activations, got none; call fit(head, train)")
            if acts is not None and method.needs_labels:
                check_labels(first, what, acts, head.classes)
            if acts is not None and method.needs_train and first.input_edit is not None:
                check_edited(first, what, acts, head)
            if acts is not None and method.assumes_nonnegative:
                warn_signed(first, acts)
            for detector in group:
                detector._forget()  # a failed fit must not leave old state behind
            method.learn_many(group, head, seen[0], seen[-1])
            together = object()
            for detector in group:
                detector.head_, detector._learned_with = head, together
                detector._learned_rows = torch.cat([acts.digests for acts in seen]) if method.needs_train else None


@sharing()
def score_many(detectors: Sequence[Detector], acts: Activations) -> list[Tensor]:
    """Return the scores (N,) of several detectors; those of the same method share work."""
    for detector in detectors:
        if not detector.fitted:
            raise _not_fitted(detector)
    scores: dict[int, Tensor] = {}
    for group in _grouped(detectors, lambda detector: (type(detector), detector._learned_with)):
        method, head = type(group[0]), group[0].head_
        moved = acts if acts.features.device == head.weight.device else acts.to(head.weight.device)
        check_acts(group[0], "activations", moved, head)
        if method.uses_head:
            check_match(group[0], "activations", moved, head)
        if method.assumes_nonnegative:
            warn_signed(group[0], moved)
        if group[0].input_edit is not None:
            check_edited(group[0], "activations", moved, head)
        for detector, raw in zip(group, method.rate_many(group, moved), strict=True):
            # NaN becomes the lowest ID-ness.
            scores[id(detector)] = raw.float().nan_to_num(nan=-LARGEST, posinf=LARGEST, neginf=-LARGEST)
    return [scores[id(detector)] for detector in detectors]


def _not_fitted(detector: Detector) -> NotFittedError:
    return NotFittedError(f"{type(detector).__name__}: is not fitted; call fit(head, train) first")


def _grouped(items: Sequence[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())

"""Detectors learn from in-distribution activations, then give each image a score: higher is more in-distribution."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, Self, final

import torch
from torch import Tensor

from idness.core import checks
from idness.core.checks import check_acts, check_edited, check_labels, check_match, check_options, one_of, warn_signed
from idness.core.errors import InputError, NotFittedError, StoreError
from idness.core.method_text import write_method
from idness.core.types import Activations, Head, InputEditor
from idness.detectors.hooks import complete
from idness.detectors.readouts import READOUTS, readout_for
from idness.detectors.sharing import grouped, sharing

LARGEST = torch.finfo(torch.float32).max


class Detector(ABC):
    """Scores how surely images belong to what a network was trained on.

    A method is a dataclass whose fields are its options. It writes `rate` and, if it learns anything, `learn`, or
    `rate_many` and `learn_many` where several settings can share work; what it learns are tensors in attributes that
    end in an underscore.
    """

    formula: ClassVar[str] = ""
    """The score as LaTeX, in the letters that the list of methods explains."""
    assumes: ClassVar[str] = ""
    """What must hold for the score to tell images apart, in a few words."""
    needs_train: ClassVar[bool] = False
    """Whether `fit` needs activations of training images."""
    needs_labels: ClassVar[bool] = False
    """Whether those activations need labels."""
    needs_val: ClassVar[bool] = False
    """Whether `fit` prefers validation images to training images; it takes the latter where the former are missing."""
    remembers: ClassVar[bool] = False
    """Whether it knows the images it learned from by heart, so that comparing it with others on these would flatter it."""
    uses_head: ClassVar[bool] = False
    """Whether scores depend on the head, so that another network's must be refused."""
    assumes_nonnegative: ClassVar[bool] = False
    """Whether features below zero make the scores meaningless."""
    takes_labels: ClassVar[bool] = False
    """Whether scores mean something where an image may get several labels, or none, and not one of the classes."""
    of_run: ClassVar[bool] = False
    """Whether it reads what a training run learned beside its network: it runs only where that run is named."""
    forward_passes: ClassVar[int] = 1
    """How often the network runs on an image: once, or more for methods that extend `InputEdit`."""
    backward_passes: ClassVar[int] = 0
    """How often gradients are taken back through the network to the image."""
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {}
    """The values of each option that a search tries."""
    other: ClassVar[Mapping[str, Any]] = {}
    """Another allowed value of each option outside the search grid, with which the tests show that the option counts."""
    rows: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """The variants that a comparison lists apart, with the options that make them; none means one row, the method itself."""
    listed_as: ClassVar[str]
    """The name under which another package offers the method; ours are called as their classes, in small letters."""

    head_: Head
    _learned_with: object
    """The same for detectors that learned together, which alone may share the work of scoring."""

    _learned_rows: Tensor | None = None
    _chosen_rows: Tensor | None = None
    """Digests of the rows that it learned from and was chosen on, on which a guard must not be calibrated."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        complete(cls)

    def __post_init__(self) -> None:
        check_options(self)

    if TYPE_CHECKING:  # what is learned needs no declaration: in a dataclass it would be an option

        def __setattr__(self, name: str, value: Any) -> None: ...

    def __getattr__(self, name: str) -> Tensor:
        if name.endswith("_") and not name.startswith("_") and not self.fitted:
            raise _not_fitted(self)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    @final
    def fit(self, head: Head, train: Activations | None = None, *, val: Activations | None = None) -> Self:
        """Learn from in-distribution activations.

        Args:
            head: the network's final linear layer.
            train: activations of training images, with labels for methods that need them.
            val: activations of validation images; methods with a threshold or temperature prefer them.
        """
        fit_many([self], head, train, val=val)
        return self

    @final
    def score(self, acts: Activations) -> Tensor:
        """Give each image its ID-ness: one finite number, higher is more in-distribution."""
        return score_many([self], acts)[0]

    @final
    def chosen_on(self, *parts: Activations) -> Self:
        """Remember activations on which this detector was preferred to others, so that no guard is calibrated on them."""
        known = [] if self._chosen_rows is None else [self._chosen_rows]
        self._chosen_rows = torch.cat([*known, *(part.digests for part in parts)])
        return self

    @final
    def seen_rows(self) -> Tensor:
        """Return the digests of all rows that this learned from or was chosen on; none for a fixed method that learns nothing."""
        parts = [rows for rows in (self._learned_rows, self._chosen_rows) if rows is not None]
        found = torch.cat(parts).unique() if parts else torch.zeros(0, dtype=torch.long)  # type: ignore[no-untyped-call]
        return found[found != 0]

    @property
    @final
    def name(self) -> str:
        """The name on the command line and in files."""
        cls = type(self)
        return str(vars(cls).get("listed_as", cls.__name__.lower()))  # of this class alone, not of a parent

    @classmethod
    def summary(cls) -> str:
        """Give the first line of its description; empty where its author wrote none."""
        return next(iter((cls.__doc__ or "").strip().splitlines()), "")

    @property
    @final
    def fitted(self) -> bool:
        """Whether `fit` has run."""
        return "head_" in self.__dict__

    @property
    def input_edit(self) -> InputEditor | None:
        """What changes the images that this looks at twice; none where one look is enough."""
        return None

    def options(self) -> dict[str, Any]:
        """Give the whole configuration as plain values."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]

    @final
    def config(self) -> dict[str, Any]:
        """Give name and options, from which `idness.build` makes the same detector."""
        return {"method": self.name, "options": self.options()}

    @final
    def label(self) -> str:
        """Write name and options as the command line takes them: `scale(percentile=85)`."""
        # The readout is named only where it is not the usual one.
        shown = {key: value for key, value in self.options().items() if (key, value) != ("readout", "energy")}
        return write_method(self.name, shown)

    @final
    def variants(self, grid: Mapping[str, Sequence[Any]] | None = None) -> list[Self]:
        """Make an unfitted copy for every combination in the search grid; options outside the grid stay as they are."""
        chosen = self.grid if grid is None else grid
        copy: Any = self
        settings = (dict(zip(chosen, values, strict=True)) for values in product(*chosen.values()))
        return [dataclasses.replace(copy, **setting) for setting in settings]

    @final
    def state(self) -> dict[str, Tensor]:
        """Give all that was learned, except the head, as tensors by name."""
        if not self.fitted:
            raise _not_fitted(self)
        own = {key: torch.as_tensor(value) for key, value in vars(self).items() if key.endswith("_") and key != "head_"}
        for prefix, part in self.inner():
            own |= {f"{prefix}.{key}": value for key, value in part.state().items()}
        return own

    @final
    def load_state(self, head: Head, state: Mapping[str, Tensor]) -> Self:
        """Take what `state` gave, with the head of the same network."""
        self._forget()
        remaining = dict(state)
        for prefix, part in self.inner():
            own = [key for key in remaining if key.startswith(f"{prefix}.")]
            part.load_state(head, {key.removeprefix(f"{prefix}."): remaining.pop(key) for key in own})
        for key, value in remaining.items():
            if not key.endswith("_"):
                raise StoreError(
                    f"{type(self).__name__}: learned values must end in an underscore, got {key!r}; is the file damaged?"
                )
            setattr(self, key, value)
        self.head_, self._learned_with = head, object()
        return self

    @final
    def to(self, device: torch.device | str) -> Self:
        """Move all that was learned to a device."""
        for key, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, key, value.to(device))
        if self.fitted:
            self.head_ = self.head_.to(device)
        for _, part in self.inner():
            part.to(device)
        return self

    def inner(self) -> Iterator[tuple[str, Detector]]:
        """Yield the detectors inside this one, by name; none unless a method says so."""
        return iter(())

    # The hooks: of `learn` and `learn_many`, and of `rate` and `rate_many`, a method writes one, and the other follows.

    def learn(self, head: Head, train: Activations, val: Activations) -> None:
        """Set the attributes that end in an underscore; images of one kind stand in for the other; without any, both are None."""

    @abstractmethod
    def rate(self, acts: Activations) -> Tensor:
        """Compute the scores (N,) with torch operations that can be exported."""

    @classmethod
    def learn_many(cls, detectors: Sequence[Self], head: Head, train: Activations, val: Activations) -> None:
        """Let several differently set detectors learn; a method writes this to share work."""
        for detector in detectors:
            detector.learn(head, train, val)

    @classmethod
    def rate_many(cls, detectors: Sequence[Self], acts: Activations) -> list[Tensor]:
        """Let several differently set detectors that learned together score; a method writes this to share work."""
        return [detector.rate(acts) for detector in detectors]

    def _forget(self) -> None:
        for key in [key for key in vars(self) if key.endswith("_")]:
            delattr(self, key)

    def _repr_html_(self) -> str:
        """Show the method, what it does and its options in a notebook."""
        state, about = "fitted" if self.fitted else "not fitted", escape(self.summary())
        return f"<p><code>{escape(self.label())}</code> · {state}<br><small>{about}</small></p>"


@dataclass(kw_only=True)
class Enhancer(Detector):
    """Edits the features or the head, then reads a score off the new logits."""

    uses_head = takes_labels = True

    readout: str = one_of(*READOUTS)

    def shape(self, features: Tensor) -> Tensor:
        """Edit features (N, D); never in place."""
        return features

    def edit(self, head: Head) -> Head:
        """Edit the head."""
        return head

    def shaped_logits(self, acts: Activations) -> Tensor:
        """Compute the logits of the edited network."""
        return self.edit(self.head_)(self.shape(acts.features))

    @final
    def read(self, logits: Tensor) -> Tensor:
        """Read the score off logits."""
        return readout_for(self.head_, self.readout)(logits)

    def rate(self, acts: Activations) -> Tensor:
        return self.read(self.shaped_logits(acts))


def fit_many(
    detectors: Sequence[Detector], head: Head, train: Activations | None = None, *, val: Activations | None = None
) -> None:
    """Fit several detectors at once; those of one method share their work."""
    if not isinstance(head, Head):
        raise InputError(
            f"fit: head must be a Head, got {type(head).__name__}; take SplitModel(model).head or Head(weight, bias)"
        )
    for what, acts in (("train", train), ("val", val)):
        if acts is not None and detectors:
            check_acts(detectors[0], what, acts, head)
            check_match(detectors[0], what, acts, head)
    seen: list[Any] = [acts for acts in (train, val) if acts is not None] or [None]
    with sharing():
        for group in grouped(detectors, type):
            checks.check_labelling(group[0], head, (method := type(group[0])).takes_labels)
            learned_from = _learned_from(group[0], head, train, val)
            if learned_from is not None and method.assumes_nonnegative:
                warn_signed(group[0], learned_from)
            for detector in group:
                detector._forget()  # if learning fails, nothing old is left to be mixed with what is new
            method.learn_many(group, head, seen[0], seen[-1])
            together = object()
            for detector in group:
                detector.head_, detector._learned_with = head, together
                detector._learned_rows = torch.cat([acts.digests for acts in seen]) if method.needs_train else None


def score_many(detectors: Sequence[Detector], acts: Activations) -> list[Tensor]:
    """Score images with several detectors at once, in their order; those of one method share their work."""
    for detector in detectors:
        if not detector.fitted:
            raise _not_fitted(detector)
    scores: dict[int, Tensor] = {}
    for group in grouped(detectors, lambda detector: (type(detector), detector._learned_with)):
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
            # An image so odd that its score overflows is the least in-distribution: the lowest score, and never NaN.
            scores[id(detector)] = raw.float().nan_to_num(nan=-LARGEST, posinf=LARGEST, neginf=-LARGEST)
    return [scores[id(detector)] for detector in detectors]


def _learned_from(
    detector: Detector, head: Head, train: Activations | None, val: Activations | None
) -> Activations | None:
    """Find the activations that a detector learns from, and check that they serve."""
    what, acts = ("val", val) if detector.needs_val and val is not None else ("train", train)
    if acts is None and detector.needs_train:
        raise InputError(f"{type(detector).__name__}: fit needs training activations, got none; call fit(head, train)")
    if acts is not None and detector.needs_labels:
        check_labels(detector, what, acts, head.classes)
    if acts is not None and detector.needs_train and detector.input_edit is not None:
        check_edited(detector, what, acts, head)
    return acts


def _not_fitted(detector: Detector) -> NotFittedError:
    return NotFittedError(f"{type(detector).__name__}: is not fitted; call fit(head, train) first")

"""Decides whether an image is one that a network can be trusted with."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from idness.core.errors import InputError, NotFittedError
from idness.core.types import Activations
from idness.detectors.detector import LARGEST, Detector
from idness.detectors.registry import parse
from idness.guard.conformal import Calibration, check_spread, wanted_recalls
from idness.guard.facts import facts, promise
from idness.guard.graph import FAR_ABOVE, NOT_FINITE
from idness.guard.inputs import InputRange, InputWatch
from idness.guard.verdict import Verdict
from idness.networks.modules import fingerprint
from idness.networks.open import example_for
from idness.networks.split import SplitModel

if TYPE_CHECKING:
    from PIL import Image

    from idness.data import Preprocessing
    from idness.guard.neighbours import Gallery


SHARED = 0.01
"""Share of calibration images that a detector may have seen, as data sets contain duplicates. Such a share s raises the false-alarm
rate by a factor of at most 1 / (1 - s): from 5 % to 5.05 %."""


@dataclass(frozen=True, eq=False)
class _Rule:
    """What decides: replaced as a whole, so that other threads see the old rule or the new one."""

    calibration: Calibration
    thresholds: Mapping[float, Tensor]
    fingerprint: str

    @staticmethod
    def of(calibration: Calibration, recalls: Sequence[float], fingerprint: str, names: Sequence[str] | None) -> _Rule:
        return _Rule(calibration, {recall: calibration.thresholds(recall, names) for recall in recalls}, fingerprint)

    @property
    def recalls(self) -> tuple[float, ...]:
        return tuple(self.thresholds)

    def to(self, device: torch.device) -> _Rule:
        moved = {recall: limits.to(device) for recall, limits in self.thresholds.items()}
        return replace(self, calibration=self.calibration.to(device), thresholds=moved)


class Guard(nn.Module):
    """Puts a detector and a calibrated threshold behind a classifier.

    The class is the plain network's: a guard never changes a prediction, it only says when not to trust it.

    Args:
        model: any torch classifier, or a SplitModel.
        detector: a detector, or its text such as `scale(percentile=85)`.
        layer: the final linear layer's name, where it should not be searched.
        multi_label: whether an image may get several labels, or none, where the network does not show it.
        preprocessing: how a picture becomes the network's input; needed for `judge`, and saved with the guard.
        class_names: the classes' names, in the order of the logits.
        spec: the network's name, as `load_model` takes it, so that a saved guard finds it again.
    """

    def __init__(
        self,
        model: nn.Module | SplitModel,
        detector: Detector | str,
        *,
        layer: str | None = None,
        multi_label: bool | None = None,
        preprocessing: Preprocessing | None = None,
        class_names: Sequence[str | int] | None = None,
        spec: str | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(model, SplitModel):
            model = SplitModel(model, layer, example=example_for(preprocessing), multi_label=multi_label)
        self.split = model
        self.model = self.split.model
        self.detector = parse(detector) if isinstance(detector, str) else detector
        self.preprocessing = preprocessing
        self.class_names = None if class_names is None else tuple(str(name) for name in class_names)
        self.spec = spec
        self._rule: _Rule | None = None
        self.gallery: Gallery | None = None
        self.image_shape: tuple[int, ...] | None = None
        self.input_range: InputRange | None = None
        classes = self.split.classes
        if self.class_names is not None and len(self.class_names) != classes:
            raise InputError(
                f"Guard: class_names must name the network's {classes} classes, got {len(self.class_names)}"
            )

    @property
    def calibration(self) -> Calibration | None:
        """The scores of the calibration images; None before `calibrate`."""
        return None if self._rule is None else self._rule.calibration

    @property
    def recalls(self) -> tuple[float, ...]:
        """The recalls that it decides at; the first one is `Verdict.is_ood`."""
        return () if self._rule is None else self._rule.recalls

    @property
    def fingerprint(self) -> str:
        """The hash of the network's weights at calibration; empty before."""
        return "" if self._rule is None else self._rule.fingerprint

    def fit(self, train: Iterable[Any] | Activations, *, val: Iterable[Any] | Activations | None = None) -> Self:
        """Let the detector learn from in-distribution images; take others than for `calibrate`.

        Args:
            train: a loader of images, with labels for methods that need them, or activations.
            val: as train, for methods that prefer validation images.
        """
        known = self._acts(train)
        self.detector.fit(self.split.head, known, val=None if val is None else self._acts(val))
        self._rule = None  # its scores are of another detector now
        return self

    def calibrate(
        self,
        data: Iterable[Any] | Activations,
        recall: float | Sequence[float] | None = None,
        *,
        false_alarm: float | Sequence[float] | None = None,
        per_class: bool = False,
    ) -> Self:
        """Set the threshold so that at most 1 - recall of in-distribution images are called OOD.

        Args:
            data: in-distribution images that neither network nor detector learned from: a loader, or activations. Refused if more than
                1 % of them are known to the detector.
            recall: share of in-distribution images to keep; several give several thresholds, the first decides. 0.95 where neither this nor
                `false_alarm` is given.
            false_alarm: share of in-distribution images that may be flagged, in place of recall.
            per_class: whether each predicted class has a threshold of its own, so that the promise holds within each.
        """
        recalls = wanted_recalls(recall, false_alarm)
        if not self.detector.fitted:
            if self.detector.needs_train:
                raise NotFittedError(
                    f"Guard: {self.detector.name} learns from training images; call fit(train) before calibrate"
                )
            self.detector.fit(self.split.head)
        watch = InputWatch()
        labels, scores = self._collect([data] if isinstance(data, Activations) else self._stream(data, watch))
        classes = self.split.classes
        fresh = Calibration.by_class(scores, labels, classes) if per_class else Calibration.pooled(scores)
        self.adopt(fresh, recalls, fingerprint(self.model))
        self.input_range = watch.found(self.preprocessing)
        return self

    def adopt(self, calibration: Calibration, recalls: Sequence[float], fingerprint: str) -> Self:
        """Decide by a calibration that was made before, of the network whose weights have this hash."""
        self._rule = _Rule.of(calibration, wanted_recalls(recalls, None), fingerprint, self.class_names)
        return self

    def set_recall(self, *recalls: float) -> Self:
        """Decide at other recalls from now on, with the same calibration images; safe while other threads decide."""
        rule = self._ready()
        return self.adopt(rule.calibration, recalls, rule.fingerprint)

    def forward(self, images: Tensor) -> Verdict:
        """Decide for a batch of images as the network takes them, or for one.

        An image with values that none had at calibration is OOD with its reason, whatever its score.
        """
        self._ready()
        batch = images.unsqueeze(0) if images.ndim == 3 else images
        rejected = {} if self.input_range is None else self.input_range.rejected(batch)
        return self.decide(self.look(batch), rejected)

    def look(self, images: Tensor) -> Activations:
        """Run a batch through the network, as often as the detector needs."""
        return self.split.split(images, edit_with=self.detector.input_edit)

    def decide(self, acts: Activations, rejected: Mapping[int, str] | None = None) -> Verdict:
        """Decide from activations.

        Args:
            acts: what the network made of images.
            rejected: rows that are OOD whatever their activations, each with its reason.
        """
        rule = self._ready()
        calibration = rule.calibration
        label, score, finite = self._score(acts)
        reasons = dict(rejected or {}) | dict.fromkeys((~finite).nonzero().flatten().tolist(), NOT_FINITE)
        refused = torch.zeros_like(finite)
        refused[list(reasons)] = True
        score = score.masked_fill(refused, -LARGEST)
        group = calibration.group(label)
        levels = {recall: (score < limits[group]) | refused for recall, limits in rule.thresholds.items()}
        return Verdict(
            label,
            score,
            calibration.p_values(score, label),
            levels[rule.recalls[0]],
            levels,
            dict(sorted(reasons.items())),
            self.class_names,
            dict.fromkeys((score > calibration.ceiling).nonzero().flatten().tolist(), FAR_ABOVE),
        )

    def judge(self, *pictures: str | os.PathLike[str] | bytes | Image.Image) -> Verdict:
        """Decide for pictures: paths, bytes of image files, or PIL images."""
        # What the guard has normalised itself is normalised rightly, however dark the pictures are.
        return self.decide(self.look(torch.stack([self.prepare(picture) for picture in pictures])))

    def prepare(self, picture: str | os.PathLike[str] | bytes | Image.Image) -> Tensor:
        """Turn one picture into the network's input."""
        from PIL import Image

        from idness.data.decoding import decode_picture

        if self.preprocessing is None:
            raise InputError(
                "Guard: has no preprocessing, so it takes tensors only; give Guard(..., preprocessing=...)"
            )
        if isinstance(picture, Image.Image):
            return self.preprocessing(picture)
        return self.preprocessing(decode_picture(picture if isinstance(picture, bytes) else Path(picture)))

    def threshold(self, recall: float | None = None) -> Tensor:
        """Return the score below which an image is called OOD: one per class, or a single one.

        Args:
            recall: share of in-distribution images to keep; any that the calibration images are enough for, by default the first
                one that was calibrated.
        """
        rule = self._ready()
        wanted = rule.recalls[0] if recall is None else recall
        found = rule.thresholds.get(wanted)
        return rule.calibration.thresholds(wanted, self.class_names) if found is None else found

    def promise(self) -> str:
        """Say in one sentence what the guard guarantees."""
        rule = self._ready()
        return promise(rule.calibration, rule.recalls[0])

    def save(self, path: str | os.PathLike[str], *, bundle: bool = False) -> Path:
        """Write the guard to a folder as safetensors and JSON.

        Args:
            path: the folder: new, empty, or one of an earlier guard, which is replaced.
            bundle: whether to put a copy of the network's weights beside it, so that the folder can be moved alone.
        """
        from idness.guard.file import save_guard

        self._ready()
        return save_guard(self, path, bundle=bundle)

    @classmethod
    def for_images(cls, model: str, images: str | os.PathLike[str], recall: float = 0.95, **options: Any) -> Guard:
        """Make a guard for a network and a folder of ID images: resizing, normalisation and the method are found by the tool.

        Args:
            model: the network, as `load_model` takes it, such as `torchvision:resnet50` or `my_net.py:make`.
            images: ID images that the network was not trained on: a folder, or any set that `open_set` takes.
            recall: share of ID images to keep.
            options: `weights`, `method` and the other arguments of `idness.guard.calibrate.prepare_guard`.
        """
        from idness.guard.calibrate import guard_for

        return guard_for(model, images, recall, **options)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: nn.Module | SplitModel | None = None) -> Guard:
        """Read a guard from a folder; its network is checked to be the one it was calibrated with.

        Args:
            path: the folder.
            model: the network; without it, it is loaded by the name that was saved.
        """
        from idness.guard.file import load_guard

        return load_guard(path, model)

    def to_onnx(self, path: str | os.PathLike[str], *, example: Tensor | None = None, force: bool = False) -> Path:
        """Write network, detector and threshold as one ONNX graph: `images` to `label, score, p_value, is_ood`.

        Args:
            path: the file, which ends in `.onnx`.
            example: a batch of the network's input, where neither preprocessing nor calibration on images tell its size.
            force: overwrite a file that idness did not export.
        """
        from idness.guard.onnx import to_onnx

        self._ready()
        return to_onnx(self, path, example=example, force=force)

    def _score(self, acts: Activations) -> tuple[Tensor, Tensor, Tensor]:
        """Give label, score and whether the row was finite; a row that is not has label -1 and the lowest score."""
        finite = acts.finite
        if bool(finite.all()):
            return acts.logits.argmax(dim=1), self.detector.score(acts), finite
        label = acts.logits.argmax(dim=1).masked_fill(~finite, -1)
        score = torch.full_like(acts.logits[:, 0], -LARGEST)
        if bool(finite.any()):
            score[finite] = self.detector.score(acts[finite])
        return label, score, finite

    def _collect(self, parts: Iterable[Activations]) -> tuple[Tensor, Tensor]:
        labels, scores, seen = [], [], 0
        first, shared, known = None, 0, self.detector.seen_rows()
        for part in parts:
            first = first or part
            label, score, finite = self._score(part)
            if not bool(finite.all()):
                row = seen + int((~finite).nonzero()[0])
                raise InputError(f"calibrate: {NOT_FINITE} for image {row}; drop it or check the network")
            labels.append(label)
            scores.append(score)
            seen += len(part)
            shared += int(torch.isin(part.digests, known).sum()) if len(known) else 0
        if shared > max(1, SHARED * seen):
            raise InputError(
                f"calibrate: {shared:,} of {seen:,} images are among those that {self.detector.name} learned from or was chosen on,"
                " so the guard would flag more ID images than it promises; calibrate on other images"
            )
        if not seen:
            raise InputError("calibrate: needs in-distribution images, got none; is the folder or loader empty?")
        assert first is not None
        check_spread(self.detector.label(), torch.cat(scores), first.logits, self.detector.score(self.blank()))
        return torch.cat(labels), torch.cat(scores)

    def blank(self) -> Activations:
        """Make the activations of an image without any feature."""
        features = torch.zeros(1, self.split.width, dtype=torch.float32, device=self.split.device)
        blank = Activations(features, self.split.head(features))
        return blank if self.detector.input_edit is None else replace(blank, edited=blank)

    def _stream(self, data: Iterable[Any], watch: InputWatch) -> Iterator[Activations]:
        """Run batches through the network, and remember the shape and the values of their images."""

        def noted() -> Iterator[Any]:
            for batch in data:
                images = batch[0] if isinstance(batch, tuple | list) and len(batch) else batch
                if isinstance(images, Tensor):
                    self.image_shape = tuple(images.shape[1:])
                    watch.note(images)
                yield batch

        return self.split.stream(noted(), edit_with=self.detector.input_edit)

    def _acts(self, data: Iterable[Any] | Activations) -> Activations:
        if isinstance(data, Activations):
            return data
        return self.split.extract(data, edit_with=self.detector.input_edit)

    def _ready(self) -> _Rule:
        if self._rule is None:
            raise NotFittedError("Guard: is not calibrated; call calibrate(loader) with in-distribution images first")
        return self._rule

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move what is not a parameter along with the network; scores stay in float32 whatever its precision."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        device = self.split.device
        self.detector.to(device)
        self._rule = self._rule and self._rule.to(device)
        return self

    def extra_repr(self) -> str:
        """Show method and calibration where torch prints the module."""
        return ", ".join(f"{key}: {value}" for key, value in facts(self) if key != "promise")

    def _repr_html_(self) -> str:
        """Show what the guard does and promises in a notebook."""
        rows = "".join(f"<tr><th>{escape(key)}</th><td>{escape(value)}</td></tr>" for key, value in facts(self))
        return f"<table>{rows}</table>"

"""A guard, which decides for each image whether it is out-of-distribution for a classifier."""

from __future__ import annotations

import copy
import json
import os
import platform
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader

from idness.core.documents import packed
from idness.core.errors import IdnessWarning, InputError, ModelError, NotFittedError, StoreError, needed
from idness.core.files import atomic_write, key_of, sha256_of
from idness.core.progress import Progress
from idness.core.scripts import Script, approve
from idness.core.text import without_folder
from idness.core.types import Activations
from idness.data import ArraySet, ImageSet, Preprocessing
from idness.data.open import open_argument, open_images
from idness.detectors.detector import Detector, Enhancer
from idness.detectors.registry import parse
from idness.guard.conformal import Calibration, calibration_images, check_spread, false_alarm_rate, wanted_recalls
from idness.guard.inputs import InputRange, InputWatch
from idness.guard.verdict import FAR_ABOVE, LOWEST, NOT_FINITE, Detection, Verdict, fdr_shortfall
from idness.networks.engines import UNKNOWN, EngineRunner
from idness.networks.hugging_face import PREFIX
from idness.networks.modules import module_fingerprint
from idness.networks.open import ModelOptions, Network, example_for, find_device
from idness.networks.split import SplitModel, unpack

if TYPE_CHECKING:
    from idness.guard.gallery import Gallery


SHARED = 0.01
"""Fraction of calibration images that a detector may have seen, since data sets contain duplicates. A fraction s raises the
false-alarm rate by a factor of at most 1 / (1 - s), here from 5 % to 5.05 %."""


@dataclass(frozen=True, eq=False)
class Rule:
    """The calibrated state of a guard, replaced as a whole so that other threads see either the old or the new one."""

    calibration: Calibration
    thresholds: Mapping[float, Tensor]
    confidence: float | None
    made_with: tuple[str, str, Preprocessing | None]
    """The hashes of network and detector, and the preprocessing, at calibration."""

    def at(self, recalls: Sequence[float]) -> Rule:
        """Return the rule at other recalls."""
        limits = {recall: self.calibration.thresholds(recall, self.confidence) for recall in recalls}
        return replace(self, thresholds=limits)


class Guard(nn.Module):
    """A classifier with a detector and a calibrated threshold.

    The predicted class is that of the plain network: a guard never changes predictions, it only flags images.

    Args:
        model: any torch classifier, or a SplitModel.
        detector: a detector, or a string such as `scale(percentile=85)`.
        layer: the name of the final linear layer; found automatically by default.
        multi_label: whether an image may have several labels or none; determined from the network by default.
        preprocessing: the network's preprocessing; needed for `judge`, and saved with the guard.
        class_names: the names of the classes, in the order of the logits.
        spec: the network's name, as `load_model` takes it, so that a saved guard can load it.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.ReLU(), nn.Linear(16, 3))
        >>> guard = Guard(net, "ebo").calibrate(DataLoader(torch.rand(99, 3, 4, 4), 33), recall=0.9)
        >>> guard(torch.rand(5, 3, 4, 4)).is_ood.shape
        torch.Size([5])
    """

    def __init__(
        self,
        model: nn.Module | SplitModel,
        detector: Detector | str,
        *,
        layer: str | None = None,
        multi_label: bool | None = None,
        preprocessing: Preprocessing | Mapping[str, Any] | None = None,
        class_names: Sequence[str | int] | None = None,
        spec: str | None = None,
    ) -> None:
        super().__init__()
        if isinstance(preprocessing, Mapping):
            preprocessing = Preprocessing.from_dict(dict(preprocessing))
        if not isinstance(model, SplitModel):
            model = SplitModel(model, layer, example=example_for(preprocessing), multi_label=multi_label)
        self.split = model
        self.model = self.split.model
        self.detector = parse(detector) if isinstance(detector, str) else detector
        self.preprocessing = preprocessing
        self.class_names = None if class_names is None else tuple(str(name) for name in class_names)
        self.spec = spec
        self._rule: Rule | None = None
        self.gallery: Gallery | None = None
        self.detection: Detection | None = None
        """The number of OOD images flagged when the guard was made; `None` if no OOD images were given."""
        self.input_range: InputRange | None = None
        classes = self.split.classes
        if self.class_names is not None and len(self.class_names) != classes:
            raise InputError(
                f"Guard: class_names must have one name for each of the network's {classes} classes, got {len(self.class_names)}"
            )

    @classmethod
    def for_images(
        cls,
        model: str | nn.Module | ModelOptions,
        images: Any,
        recall: float | Sequence[float] = 0.95,
        *,
        per_class: bool = False,
        confidence: float | None = None,
        notes: list[str] | None = None,
        **options: Any,
    ) -> Guard:
        """Return a guard calibrated on in-distribution images; preprocessing and method are chosen automatically.

        Args:
            model: the network, or a name for `load_model`, such as `torchvision:resnet50` or `my_net.py:make`.
            images: in-distribution images that the network was not trained on: a folder or any set that `open_set` accepts, a list of
                paths, arrays or PIL images, a data set of such images or of pairs with labels, a Hugging Face `Dataset`, or a data
                set or DataLoader of tensors, whose normalisation must then be passed as `preprocessing`.
            recall: see `calibrate`.
            per_class: see `calibrate`.
            confidence: see `calibrate`.
            notes: a list to which remarks are appended; without it, cautions are issued as warnings.
            options: the arguments of `idness.guard.calibrate.prepare`, such as `method`, `train` and `ood`, and the fields of
                `ModelOptions`, such as `weights` and `preprocessing`.
        """
        from idness.guard.calibrate import CAUTION, prepare

        recalls = wanted_recalls(recall, None, confidence)
        remarks: list[str] = [] if notes is None else notes
        least = max(calibration_images(recall, confidence) for recall in recalls)
        network, detector, acts, outliers, values, gallery = prepare(model, images, remarks, least=least, **options)
        names, spec = network.class_names, network.spec or None
        guard = cls(network.split, detector, preprocessing=network.how, class_names=names, spec=spec)
        guard.calibrate(acts, recalls, per_class=per_class, confidence=confidence)
        guard.input_range, guard.gallery = values, gallery
        if outliers is not None:
            guard.detection = Detection(int(guard.decide(outliers).is_ood.sum()), len(outliers))
        approve(network.spec)
        for remark in remarks:
            if notes is None and remark.startswith(CAUTION):
                warnings.warn(remark.removeprefix(CAUTION), IdnessWarning, stacklevel=2)
        return guard

    @property
    def calibration(self) -> Calibration | None:
        """The scores of the calibration images; `None` before `calibrate`."""
        return None if self._rule is None else self._rule.calibration

    @property
    def groups(self) -> list[list[float]] | None:
        """The calibration scores of each group in ascending order, as plain numbers; `None` before `calibrate`."""
        known = self.calibration
        return None if known is None else [part.tolist() for part in torch.split(known.scores, known.sizes.tolist())]

    @property
    def recalls(self) -> tuple[float, ...]:
        """The calibrated recalls; the first one decides `Verdict.is_ood`."""
        return () if self._rule is None else tuple(self._rule.thresholds)

    @property
    def method(self) -> str:
        """The method with its options."""
        return self.detector.label()

    def rule(self) -> Rule:
        """Return the calibrated state; raise `NotFittedError` before `calibrate`."""
        if self._rule is None:
            raise NotFittedError("Guard: is not calibrated; call calibrate(loader) with in-distribution images first")
        return self._rule

    def fit(self, train: Iterable[Any] | Activations, *, val: Iterable[Any] | Activations | None = None) -> Self:
        """Fit the detector on in-distribution images, which must not be those of `calibrate`.

        Args:
            train: a loader of images, with labels for methods that need them, or activations.
            val: the same, for methods that prefer validation images.
        """
        known = self._acts(train)
        self.detector.fit(self.split.head, known, val=None if val is None else self._acts(val))
        self._rule = None  # the previous calibration does not apply to the new detector
        return self

    def calibrate(
        self,
        data: Iterable[Any] | Activations,
        recall: float | Sequence[float] = 0.95,
        *,
        per_class: bool = False,
        confidence: float | None = None,
    ) -> Self:
        """Set the threshold such that, on average, at most a fraction 1 - recall of in-distribution images is flagged.

        Args:
            data: in-distribution images that neither network nor detector was fitted on: a loader, or activations. An error is
                raised if the detector has seen more than 1 % of them.
            recall: fraction of in-distribution images to accept; several give several thresholds, of which the first decides.
            per_class: whether each predicted class has its own threshold, so that the guarantee holds within each class.
            confidence: the probability, such as 0.95, with which this guard, not only the average guard, keeps its false-alarm
                rate; this lowers the threshold and needs more images.
        """
        recalls = wanted_recalls(recall, None, confidence)
        if not self.detector.fitted:
            if self.detector.needs_train:
                raise NotFittedError(
                    f"Guard: {self.detector.name} needs training images; call fit(train) before calibrate"
                )
            self.detector.fit(self.split.head)
        watch = InputWatch()
        acts = self._acts(data if isinstance(data, Activations) else watch.noted(data))
        labels, scores, finite = self._score(acts)
        if not bool(finite.all()):
            row = int((~finite).nonzero()[0])
            raise InputError(f"calibrate: {NOT_FINITE} for image {row}; remove the image or check the network")
        shared = int(torch.isin(acts.digests, self.detector.seen_rows()).sum())
        if shared > max(1, SHARED * len(acts)):
            raise InputError(
                f"calibrate: {shared:,} of {len(acts):,} images were used to fit or choose {self.detector.name}, so the guard would flag"
                " more ID images than its guarantee allows; calibrate on other images"
            )
        check_spread(self.method, scores, acts.logits, self.detector.score(self.blank()))
        fresh = Calibration.by_class(scores, labels, self.split.classes) if per_class else Calibration.pooled(scores)
        self.adopt(fresh, recalls, module_fingerprint(self.model), confidence)
        self.input_range = watch.found(self.preprocessing)
        return self

    def adopt(
        self, calibration: Calibration, recalls: Sequence[float], fingerprint: str, confidence: float | None
    ) -> Self:
        """Use an existing calibration that was made with the network whose weights have this hash."""
        rule = Rule(calibration, {}, confidence, (fingerprint, self._detector_hash(), self.preprocessing))
        self._rule, self.detection = rule.at(recalls), None
        return self

    def _detector_hash(self) -> str:
        options = json.dumps(self.detector.config(), sort_keys=True, default=repr)
        return sha256_of((options, packed(self.detector.state())))

    def set_recall(self, *recalls: float) -> Self:
        """Use other recalls from now on, with the same calibration images and confidence; thread-safe."""
        self._rule, self.detection = self.rule().at(recalls), None
        return self

    def forward(self, images: Tensor) -> Verdict:
        """Return the verdict on a batch of preprocessed images, or on a single one.

        An image with values outside the range seen at calibration is OOD, with the reason, whatever its score.
        """
        return self._judged(images.unsqueeze(0) if images.ndim == 3 else images, self.input_range)[0]

    def judge_array(self, images: NDArray[Any]) -> tuple[Verdict, Tensor]:
        """Return the verdict on pixels (N, H, W, C) uint8 or preprocessed images (N, C, H, W) float32, and their features."""
        if images.dtype == np.uint8 and self.preprocessing is not None:  # always within the input range
            verdict, acts = self._judged(self.preprocessing.normalize(images), None)
        else:
            verdict, acts = self._judged(torch.from_numpy(images), self.input_range)
        return verdict, acts.features.cpu()

    def _judged(self, images: Tensor, known: InputRange | None) -> tuple[Verdict, Activations]:
        self.rule()
        rejected = {} if known is None else known.rejected(images)
        acts = self.split.split(images.to(self.split.device), edit_with=self.detector.input_edit)
        return self.decide(acts, rejected), acts

    def decide(self, acts: Activations, rejected: Mapping[int, str] | None = None) -> Verdict:
        """Return the verdict on images given their activations.

        Args:
            acts: the activations of the images.
            rejected: rows that are OOD whatever their activations, with the reasons.
        """
        rule = self.rule()
        calibration = rule.calibration
        label, score, finite = self._score(acts)
        reasons = dict(rejected or {}) | dict.fromkeys((~finite).nonzero().flatten().tolist(), NOT_FINITE)
        refused = torch.zeros_like(finite)
        refused[list(reasons)] = True
        score = score.masked_fill(refused, LOWEST)
        group = calibration.group(label)
        levels = {recall: (score < limits[group]) | refused for recall, limits in rule.thresholds.items()}
        return Verdict(
            label,
            score,
            calibration.p_values(score, label),
            next(iter(levels.values())),
            levels,
            dict(sorted(reasons.items())),
            self.class_names,
            dict.fromkeys((score > calibration.ceiling).nonzero().flatten().tolist(), FAR_ABOVE),
        )

    def judge(self, *images: Any) -> Verdict:
        """Return the verdict on images in any form; an unreadable image does not affect the others.

        Args:
            images: paths, bytes of image files, PIL images, uint8 arrays or tensors (H, W, 3) or (3, H, W), or one folder, list or
                batch of them. For a batch of preprocessed float tensors, use `guard(images)`.

        Returns:
            A verdict with the images' names; an image that cannot be read is flagged, with its error.
        """
        self.rule()
        several = len(images) == 1 and (isinstance(images[0], list | tuple) or getattr(images[0], "ndim", 0) == 4)
        folder = len(images) == 1 and isinstance(images[0], str | os.PathLike) and Path(images[0]).is_dir()
        found = open_images([str(images[0])]) if folder else ArraySet(images[0] if several else images)
        return Verdict.concat(list(self.verdicts(found)))

    def screen(self, images: Any, fdr: float = 0.1) -> Verdict:
        """Judge many images together such that, on average, at most a fraction `fdr` of the flagged images is in-distribution.

        Args:
            images: a folder or any set that `open_set` accepts, a data set, a list of images, or a DataLoader of preprocessed batches.
            fdr: the false discovery rate, in (0, 1).

        Returns:
            A verdict whose `is_ood` is `select(fdr)`; a warning is issued if there are too few calibration images to flag any.
        """
        calibration = self.rule().calibration
        if isinstance(images, DataLoader):
            parts: Iterable[Verdict] = (self(unpack(each)[0]) for each in images)
        else:
            found = open_argument("images", images)
            if not isinstance(found, ImageSet):
                raise InputError("screen: images= must contain images, got activations; use guard.decide(activations)")
            parts = self.verdicts(found)
        verdict = Verdict.concat(list(parts))
        verdict = replace(verdict, is_ood=verdict.select(fdr), fdr=fdr, levels={})
        tested = [p for row, p in enumerate(verdict.p_value.tolist()) if row not in verdict.reasons]
        shortfall = fdr_shortfall(tested, int(calibration.sizes.min()), fdr)
        if shortfall:
            warnings.warn(f"Guard: {shortfall}", IdnessWarning, stacklevel=2)
        return verdict

    def batch_size(self, wanted: int | None = None) -> int:
        """Return the batch size; without a fixed input size, each image is a batch of its own."""
        if self.preprocessing is None or self.preprocessing.size is None:
            return 1
        return wanted or Network(self.split, self.preprocessing).batch

    def verdicts(
        self, images: ImageSet, *, batch: int | None = None, progress: Progress | None = None
    ) -> Iterator[Verdict]:
        """Yield the verdicts on a set, batch by batch; an image that cannot be read has an error."""
        from idness.activations.extract import run_images

        if self.preprocessing is None:
            raise InputError("Guard: without preprocessing, only tensors are accepted; pass preprocessing=")
        network, edit = Network(self.split, self.preprocessing), self.detector.input_edit
        size = self.batch_size(batch)
        for read, acts in run_images(network, images, batch_size=size, edit_with=edit, progress=progress):
            yield self.decide(acts.to(self.split.device)).of_batch(images, read)

    def threshold(self, recall: float | None = None) -> Tensor:
        """Return the score below which an image is flagged: one per class, or a single one.

        Args:
            recall: a recall with enough calibration images; by default the first calibrated one.
        """
        rule = self.rule()
        if recall is None:
            return next(iter(rule.thresholds.values()))
        return rule.calibration.thresholds(recall, rule.confidence)

    def promise(self) -> str:
        """Return the guarantee in one sentence."""
        rule = self.rule()
        known, recall = rule.calibration, self.recalls[0]
        low, high = known.spread(recall, confidence=rule.confidence)
        kind = "On average," if rule.confidence is None else f"With {100 * rule.confidence:g} % confidence,"
        return (
            f"{kind} at most {100 * false_alarm_rate(recall):.4g} % of in-distribution images"
            f"{' of each predicted class' if known.per_class else ''} are flagged, as long as they come from the same source as the"
            f" {len(known):,} calibration images; a single calibration of this size has a rate between {100 * low:.1f} and"
            f" {100 * high:.1f} % in 95 of 100 cases."
        )

    def describe(self) -> dict[str, Any]:
        """Return the guard as plain values, as stored in its file and its exported graph.

        Raises:
            ModelError: if the network, the detector or the preprocessing has changed since calibration.
        """
        from idness import __version__

        rule, spec = self.rule(), self.spec
        fingerprint, detector, how = rule.made_with
        same = (module_fingerprint(self.model), self._detector_hash()) == (fingerprint, detector)
        if not same or how not in (None, self.preprocessing):
            raise ModelError(
                "Guard: the network's weights, the detector or the preprocessing have changed since calibration; calibrate again"
            )
        script = None if spec is None else Script.named(spec)
        return {
            "detector": self.detector.config(),
            "recalls": list(self.recalls),
            "thresholds": {f"{recall:g}": limits.tolist() for recall, limits in rule.thresholds.items()},
            "calibration_images": len(rule.calibration),
            "per_class": rule.calibration.per_class,
            **({} if rule.confidence is None else {"confidence": rule.confidence}),
            **({} if self.detection is None else {"detection": asdict(self.detection)}),
            "model": {
                "spec": None if spec is None else without_folder(spec),
                # Identifies the network's script among others of the same name.
                "code": script.identity() if script is not None and script.file.is_file() else "",
                "class": type(self.model).__name__,
                "layer": self.split.layer,
                "fingerprint": fingerprint,
                "multi_label": self.split.multi_label,
                "ending": self.split.ending,
            },
            "preprocessing": None if self.preprocessing is None else self.preprocessing.to_dict(),
            "class_names": None if self.class_names is None else list(self.class_names),
            "input_range": None if self.input_range is None else asdict(self.input_range),
            "versions": {"idness": __version__, "torch": torch.__version__, "python": platform.python_version()},
        }

    def identity(self, batch: int) -> str:
        """Return a hash of everything besides the image that affects a verdict, including versions, engine and batch size."""
        calibration, runner, facts = self.rule().calibration, self.split.runner, self.describe()
        del facts["model"]["code"]  # known only if the script lies in the current folder
        facts.pop("detection", None)  # a measurement, which does not change verdicts
        learned = {**self.detector.state(), "scores": calibration.scores, "sizes": calibration.sizes}
        engine = "" if runner is None else runner.asked
        return key_of(json.dumps(facts, sort_keys=True), sha256_of(packed(learned)), engine, str(batch))

    def save(self, path: str | os.PathLike[str], *, bundle: bool = False, force: bool = False) -> Path:
        """Write the guard to a folder as safetensors and JSON.

        Args:
            path: a new or empty folder, or that of an earlier guard, which is replaced.
            bundle: whether to include a copy of the network's weights, so that the folder is self-contained.
            force: whether to write into a folder with other files, overwriting files of the same name.
        """
        from idness.guard.storage import guard_folder, save_guard

        return save_guard(self, guard_folder(path, force=force), bundle=bundle)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        model: str | nn.Module | SplitModel | None = None,
        *,
        weights: str | Path | None = None,
        engine: str | None = None,
        images: int | None = None,
        device: str = "cpu",
    ) -> Guard:
        """Load a guard from a folder, and check that its network is the one it was calibrated with.

        Args:
            path: the folder.
            model: the network or its name; by default, the network that the guard names.
            weights: the network's weights, if it is loaded by name.
            engine: the engine that runs the network, as in `ModelOptions`; `None` runs the unchanged network.
            images: the expected number of images, for the choice of the engine.
            device: the device of the network; `auto` uses a GPU if available.
        """
        from idness.guard.storage import load_guard

        guard = load_guard(cls, Path(path), model, weights).to(find_device(device))
        if engine is not None:
            guard.split.runner = EngineRunner(engine, UNKNOWN if images is None else images)
        return guard

    def push_to_hub(self, repo_id: str, *, private: bool = False, token: str | None = None) -> str:
        """Upload the guard, its network's weights and a model card to the Hugging Face Hub.

        Args:
            repo_id: the repository, such as `me/my-guard`; it is created if it does not exist.
            private: whether a new repository is private.
            token: an access token; by default, that of `hf auth login`.

        Returns:
            The address of the commit.
        """
        from idness.guard.storage import model_card

        hub, spec = needed("huggingface_hub", "push_to_hub", "hf", StoreError), self.spec or ""
        if spec.startswith(PREFIX) and Path(local := spec.removeprefix(PREFIX)).is_dir():
            raise StoreError(
                f"push_to_hub: the network is the local folder {local}; push it first and calibrate with {PREFIX}NAME"
            )
        old = ["tensors-*.safetensors", "weights-*.safetensors"]
        with tempfile.TemporaryDirectory() as name:
            folder = self.save(Path(name) / "guard", bundle=True)
            atomic_write(folder / "README.md", model_card(self, repo_id))
            hub.create_repo(repo_id, exist_ok=True, private=private, token=token)
            done = hub.upload_folder(repo_id=repo_id, folder_path=folder, delete_patterns=old, token=token)
        return str(done)

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str | os.PathLike[str],
        model: str | nn.Module | SplitModel | None = None,
        *,
        revision: str | None = None,
        token: str | None = None,
        **options: Any,
    ) -> Guard:
        """Load a guard from the Hugging Face Hub, its cache or a folder.

        Args:
            repo_id: the repository or the folder.
            model: the network or its name; by default, the network that the guard names.
            revision: a branch, tag or commit of the repository.
            token: an access token; by default, that of `hf auth login`.
            **options: the other arguments of `load`.
        """
        if not Path(repo_id).is_dir():
            hub, names = needed("huggingface_hub", "from_pretrained", "hf", StoreError), ["guard.json", "*.safetensors"]
            repo_id = hub.snapshot_download(str(repo_id), revision=revision, token=token, allow_patterns=names)
        return cls.load(repo_id, model, **options)

    def to_onnx(self, path: str | os.PathLike[str], *, example: Tensor | None = None, force: bool = False) -> Path:
        """Write network, detector and threshold as one ONNX graph: `images` to `label, score, p_value, is_ood`.

        Args:
            path: the file, which ends in `.onnx`.
            example: a batch of the network's input, if its size is not known from the preprocessing.
            force: whether to overwrite a file that idness did not export.
        """
        from idness.guard.onnx import to_onnx

        return to_onnx(self, GuardGraph(self), path, example, force)

    def blank(self) -> Activations:
        """Return the activations of a hypothetical image whose features are all zero."""
        features = torch.zeros(1, self.split.width, dtype=torch.float32, device=self.split.device)
        blank = Activations(features, self.split.head(features))
        return blank if self.detector.input_edit is None else replace(blank, edited=blank)

    def _score(self, acts: Activations) -> tuple[Tensor, Tensor, Tensor]:
        """Return labels, scores and a mask of finite rows; other rows have label -1 and the lowest score."""
        finite = acts.finite
        label = acts.logits.argmax(dim=1).masked_fill(~finite, -1)
        score = torch.full_like(acts.logits[:, 0], LOWEST)
        if bool(finite.any()):
            score[finite] = self.detector.score(acts if bool(finite.all()) else acts[finite])
        return label, score, finite

    def _acts(self, data: Iterable[Any] | Activations) -> Activations:
        if isinstance(data, Activations):
            return data
        return self.split.extract(data, edit_with=self.detector.input_edit)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move detector and thresholds together with the network; scores stay in float32 whatever its precision."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        device = self.split.device
        self.detector.to(device)
        if self._rule is not None:
            moved = {recall: limits.to(device) for recall, limits in self._rule.thresholds.items()}
            self._rule = replace(self._rule, calibration=self._rule.calibration.to(device), thresholds=moved)
        return self

    def extra_repr(self) -> str:
        """Return method and calibration for the module's `repr`."""
        known = self.calibration
        state = "not calibrated" if known is None else f"calibrated on {len(known):,} images, recalls: {self.recalls}"
        return f"network: {self.spec or type(self.model).__name__}, method: {self.method}, {state}"


class GuardGraph(nn.Module):
    """The decision of a guard as plain tensor operations, which can be exported.

    It contains a copy of the network, because exporting modifies a network temporarily while other threads may be using it.
    """

    def __init__(self, guard: Guard) -> None:
        super().__init__()
        self.split = guard.split.copy()
        self.model = self.split.model
        self.calibration, self.input_range = guard.rule().calibration, guard.input_range
        self.detector = copy.copy(guard.detector)
        if isinstance(self.detector, Enhancer):
            edited = self.detector.edit(guard.split.head)  # does not depend on the image: a constant of the graph
            vars(self.detector)["edit"] = lambda _: edited

    def forward(self, images: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        features, logits = (value.float() for value in self.split.look(images))
        # Testing a sum is cheaper than testing each value; it is finite if all are, since sums of in-distribution images do not overflow.
        finite = (features * 0).sum(dim=1) + (logits * 0).sum(dim=1) == 0
        features, logits = (torch.where(finite.unsqueeze(1), value, 0.0) for value in (features, logits))
        # Without the checks of `Activations`, whose len() would fix the batch size of the graph.
        acts = object.__new__(Activations)
        vars(acts).update(features=features, logits=logits)
        score = self.detector.rate(acts).float()
        score = torch.where(score.isnan(), LOWEST, score).clamp(LOWEST, -LOWEST)
        label = torch.where(finite, logits.argmax(dim=1), -1)
        if self.input_range is not None:
            finite = finite & self.input_range.contains(images)
        score = torch.where(finite, score, LOWEST)
        group = self.calibration.group(label)
        is_ood = (score < threshold[group]) | ~finite
        return label, score, self.calibration.p_values(score, label), is_ood

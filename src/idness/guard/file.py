"""A guard on disk: a folder with `guard.json` and the safetensors file that it names; no pickle.

The tensors' file is named after its content, so that replacing `guard.json` in one step replaces the whole guard: a
reader sees the old one or the new one, after a crash too.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from idness.core.documents import Document, packed
from idness.core.errors import IdnessError, InputError, ModelError, StoreError
from idness.core.files import Content, OutputFolder, discard, locked, sha256_of
from idness.core.scripts import Script, approved
from idness.core.wording import without_folder
from idness.data import Preprocessing
from idness.detectors.registry import build
from idness.guard.conformal import Calibration
from idness.guard.inputs import InputRange, of_preprocessing
from idness.guard.neighbours import Gallery
from idness.networks.engines import UNKNOWN, EngineRunner
from idness.networks.modules import fingerprint
from idness.networks.open import ModelOptions, open_network
from idness.networks.split import SplitModel

if TYPE_CHECKING:
    from idness.guard.guard import Guard

FORMAT = 1
"""Version of the format; a file with a higher one is refused, lower ones keep loading."""
MANIFEST = "guard.json"


@dataclass(frozen=True)
class FileEntry:
    """Names a safetensors file of the folder, and its hash."""

    file: str
    sha256: str

    def below(self, folder: Path) -> Path:
        """Give its path; only the name's last part counts, as a manifest must not lead anywhere else."""
        return folder / Path(self.file).name


@dataclass(frozen=True)
class DetectorEntry:
    """Says which detector to build."""

    method: str
    options: dict[str, Any]


@dataclass(frozen=True)
class ModelEntry:
    """Says which network the guard was calibrated with."""

    spec: str | None
    kind: Annotated[str, Field(alias="class")]
    layer: str
    fingerprint: str
    file: FileEntry | None = None
    multi_label: bool = False
    ending: str = ""
    code: str = ""

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return self.spec or self.kind


@dataclass(frozen=True)
class Manifest:
    """Holds what loading needs of a guard's `guard.json`."""

    detector: DetectorEntry
    recalls: list[float]
    model: ModelEntry
    tensors: FileEntry
    preprocessing: dict[str, Any] | None = None
    class_names: list[str] | None = None
    input_range: InputRange | None = None


_DOCUMENT = Document(
    content=Manifest,
    version=FORMAT,
    absent="make a guard with idness calibrate",
    remedy="restore it or calibrate anew",
    sealed=True,
)


def guard_folder(path: str | os.PathLike[str], *, force: bool = False) -> OutputFolder:
    """Return the output folder of a guard, whose `guard.json` names its other files."""
    return OutputFolder.of(path, _named_files, listed=False, force=force)


def save_guard(guard: Guard, path: str | os.PathLike[str], *, bundle: bool = False) -> Path:
    """Write a guard to a folder."""
    folder = guard_folder(path)
    if folder.path.is_file():
        raise StoreError(f"cannot write the guard to {folder}: it is a file; give a folder")
    contents = _contents(guard, bundle)
    with locked(folder.path, wait=True):
        before = folder.files
        folder.write(contents)
        discard(*(folder.path / name for name in before - folder.files))
    return folder.path


def _contents(guard: Guard, bundle: bool) -> dict[str, Content]:
    """Return a guard's files by name, `guard.json` last."""
    calibration = guard.calibration
    assert calibration is not None  # Guard.save has looked
    tensors: dict[str, Tensor] = {"calibration.scores": calibration.scores, "calibration.sizes": calibration.sizes}
    tensors |= {f"detector.{name}": value for name, value in guard.detector.state().items()}
    tensors["seen"] = guard.detector.seen_rows()
    if guard.gallery is not None:
        tensors |= guard.gallery.tensors()
    manifest = describe(guard)
    contents: dict[str, Content] = {}
    manifest["tensors"] = _add_tensors(contents, "tensors", tensors)
    if bundle:
        manifest["model"]["file"] = _add_tensors(contents, "weights", guard.model.state_dict())
    return contents | {MANIFEST: _DOCUMENT.text(manifest)}


def load_guard(
    path: str | os.PathLike[str],
    model: str | nn.Module | SplitModel | None = None,
    weights: str | Path | None = None,
    *,
    engine: str | None = None,
    images: int | None = None,
) -> Guard:
    """Read a guard from a folder, and its network by name unless it is given.

    Args:
        path: the folder.
        model: the network or its name, if the one that the guard names cannot be used.
        weights: the network's weights.
        engine: what runs the network; the unchanged network if `None`.
        images: the number of images to expect, for the choice of the engine.
    """
    folder = Path(path)
    manifest, tensors = _read_both(folder)
    try:
        guard = _made(folder, manifest, tensors, model, weights)
        _try_out(guard)
    except IdnessError:
        raise
    except Exception as error:  # a forged file fails in whatever way it likes
        raise _DOCUMENT.damaged(folder / MANIFEST, f"{type(error).__name__}: {error}") from error
    if engine is not None:
        guard.split.runner = EngineRunner(engine, UNKNOWN if images is None else images)
    return guard


def _made(
    folder: Path,
    manifest: Manifest,
    tensors: Mapping[str, Tensor],
    model: str | nn.Module | SplitModel | None,
    weights: str | Path | None,
) -> Guard:
    """Make the guard that a manifest and its tensors describe."""
    from idness.guard.guard import Guard

    known = manifest.model
    how = None if manifest.preprocessing is None else Preprocessing.from_dict(manifest.preprocessing)
    _check_numbers(folder, manifest, tensors)
    if model is None or isinstance(model, str):
        model = _opened(folder, manifest, how, model, weights)
    split = model if isinstance(model, SplitModel) else _split(model, known, folder)
    if fingerprint(split.model) != known.fingerprint:
        raise ModelError(
            f"{folder}: was calibrated with another network: the weights given are not those of {known.name};"
            " load the same weights, or calibrate anew"
        )
    if split.ending != known.ending:
        raise ModelError(
            f"{folder}: was calibrated on other logits: the network's are now those of {known.layer!r} {split.ending or 'as they are'},"
            f" then {known.ending or 'as they are'}; calibrate anew"
        )
    detector = build(manifest.detector.method, **manifest.detector.options)
    state = {name.removeprefix("detector."): value for name, value in tensors.items() if name.startswith("detector.")}
    detector.load_state(split.head, state)
    detector._learned_rows = tensors.get("seen")
    guard = Guard(split, detector, preprocessing=how, class_names=manifest.class_names, spec=known.spec)
    device = split.device
    detector.to(device)
    calibration = Calibration(tensors["calibration.scores"], tensors["calibration.sizes"]).to(device)
    guard.gallery = Gallery.from_tensors(tensors)
    guard.input_range = manifest.input_range or of_preprocessing(how)
    return guard.adopt(calibration, manifest.recalls, known.fingerprint)


def _try_out(guard: Guard) -> None:
    """Decide about an image without any feature, and fail where the parts do not fit each other."""
    guard.decide(guard.blank())
    assert guard.calibration is not None
    groups, classes, gallery = len(guard.calibration.sizes), guard.split.classes, guard.gallery
    if groups not in (1, classes):
        raise InputError(f"Calibration: must have one group, or one per class, got {groups} of {classes}")
    if gallery is not None and len(gallery):
        gallery.nearest(torch.zeros(1, guard.split.width), 1)
        if not 0 <= int(gallery.labels.min()) <= int(gallery.labels.max()) < classes:
            raise InputError(f"Gallery: labels must be in [0, {classes}), got others")


def _check_numbers(folder: Path, manifest: Manifest, tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors that hold NaN: no method learns any."""
    for name, value in tensors.items():
        if value.is_floating_point() and bool(value.isnan().any()):
            raise _DOCUMENT.damaged(manifest.tensors.below(folder), f"{name}: holds NaN")


def describe(guard: Guard) -> dict[str, Any]:
    """Return a guard in plain values, as its file and its exported graph carry it.

    Raises:
        ModelError: the network has changed since calibration.
    """
    from idness import __version__

    calibration = guard.calibration
    if calibration is not None and fingerprint(guard.model) != guard.fingerprint:
        raise ModelError(
            "Guard: the network's weights have changed since calibration, so the guard does not hold for it; calibrate again"
        )
    return {
        "detector": guard.detector.config(),
        "recalls": list(guard.recalls),
        "thresholds": {f"{recall:g}": guard.threshold(recall).tolist() for recall in guard.recalls},
        "calibration_images": 0 if calibration is None else len(calibration),
        "per_class": calibration is not None and calibration.per_class,
        "model": {
            "spec": None if guard.spec is None else without_folder(guard.spec),
            "code": _code(guard.spec),
            "class": type(guard.model).__name__,
            "layer": guard.split.layer,
            "fingerprint": guard.fingerprint,
            "multi_label": guard.split.multi_label,
            "ending": guard.split.ending,
        },
        "preprocessing": None if guard.preprocessing is None else guard.preprocessing.to_dict(),
        "class_names": None if guard.class_names is None else list(guard.class_names),
        "input_range": None if guard.input_range is None else asdict(guard.input_range),
        "versions": {"idness": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }


def _code(spec: str | None) -> str:
    """Give the identity of a network's script, so that it is found again among others of its name."""
    script = None if spec is None else Script.named(spec)
    return script.identity() if script is not None and script.file.is_file() else ""


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Read and check a guard's `guard.json`, without its tensors."""
    return _DOCUMENT.read(Path(path) / MANIFEST)


def _read_both(folder: Path) -> tuple[Manifest, dict[str, Tensor]]:
    seen = None
    while True:
        manifest = read_manifest(folder)
        try:
            return manifest, _read_tensors(folder, manifest.tensors)
        except StoreError:
            # Other processes may have replaced the guard between the two reads, again and again; else it is damaged.
            if manifest == seen:
                raise
            seen = manifest


def _add_tensors(contents: dict[str, Content], kind: str, tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Add a file of tensors, named by its hash, to those that are written, and return its entry in the manifest."""
    content = packed(tensors)
    digest = sha256_of(content)
    name = f"{kind}-{digest[:16]}.safetensors"
    contents[name] = content
    return {"file": name, "sha256": digest}


def _read_tensors(folder: Path, entry: FileEntry) -> dict[str, Tensor]:
    return _DOCUMENT.tensors(entry.below(folder), entry.sha256)


def _opened(
    folder: Path, manifest: Manifest, how: Preprocessing | None, spec: str | None, weights: str | Path | None
) -> SplitModel:
    """Open the network of this name, or else the one that the guard names, with the guard's copy of the weights if it has one."""
    known = manifest.model
    if spec is None:
        if known.spec is None:
            raise ModelError(f"{folder}: does not name its network ({known.kind}); give model=")
        spec = approved(known.spec, code=known.code)
    if weights is None and known.file is not None:
        _read_tensors(folder, known.file)  # damage is told as damage, before anything is built from it
        weights = known.file.below(folder)
    options = ModelOptions(spec, weights, layer=known.layer, preprocessing=how, multi_label=known.multi_label)
    return open_network(options).split


def _split(model: nn.Module, known: ModelEntry, folder: Path) -> SplitModel:
    try:
        return SplitModel(model, known.layer, multi_label=known.multi_label)
    except ModelError as error:
        raise ModelError(
            f"{folder}: was calibrated with {known.name}, whose final layer is {known.layer!r};"
            f" got {type(model).__name__}, which has none of that name"
        ) from error


def _named_files(folder: Path) -> set[str]:
    """Return the names of the files that a folder's `guard.json` lists; empty if it is missing or not a guard's."""
    try:
        known = read_manifest(folder)
    except StoreError:
        return set()
    entries = [known.tensors, *([known.model.file] if known.model.file is not None else [])]
    return {MANIFEST, *(entry.below(folder).name for entry in entries)}

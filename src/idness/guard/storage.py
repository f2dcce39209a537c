"""Saving and loading of guards: a folder with `guard.json` and the safetensors files that it names, no pickle; and model cards.

Tensor files are named by a hash of their content, so that replacing `guard.json` atomically replaces the whole guard: a reader sees
either the old one or the new one, even after a crash.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from idness.core.documents import Document, packed
from idness.core.errors import IdnessError, ModelError, StoreError
from idness.core.files import Content, OutputFolder, discard, locked, sha256_of
from idness.core.scripts import Script, approve, approved
from idness.core.text import abridged
from idness.data import Preprocessing
from idness.detectors.registry import build
from idness.guard.conformal import Calibration
from idness.guard.gallery import Gallery
from idness.guard.inputs import InputRange, range_of
from idness.guard.verdict import Detection
from idness.networks.hugging_face import PREFIX
from idness.networks.modules import module_fingerprint
from idness.networks.open import ModelOptions, example_for, open_network
from idness.networks.split import SplitModel

if TYPE_CHECKING:
    from idness.guard.guard import Guard

FORMAT = 1
"""Version of the format; newer files are rejected, older ones can still be loaded."""
MANIFEST = "guard.json"


@dataclass(frozen=True)
class FileEntry:
    """The name and hash of a safetensors file in the folder."""

    file: str
    sha256: str

    def below(self, folder: Path) -> Path:
        """Return the file's path; only the last part of its name is used, since a manifest must not point outside its folder."""
        return folder / Path(self.file).name


@dataclass(frozen=True)
class ModelEntry:
    """The network that the guard was calibrated with."""

    spec: str | None
    layer: str
    fingerprint: str
    file: FileEntry | None = None
    multi_label: bool = False
    ending: str = ""
    code: str = ""


@dataclass(frozen=True)
class GuardManifest:
    """The fields of `guard.json` that loading needs."""

    detector: dict[str, Any]
    recalls: list[float]
    model: ModelEntry
    tensors: FileEntry
    preprocessing: dict[str, Any] | None = None
    class_names: list[str] | None = None
    input_range: InputRange | None = None
    confidence: float | None = None
    detection: Detection | None = None


_DOCUMENT = Document(
    content=GuardManifest,
    version=FORMAT,
    absent="create a guard with idness calibrate",
    remedy="restore it or calibrate again",
    sealed=True,
)


def guard_folder(path: str | os.PathLike[str], *, force: bool = False) -> OutputFolder:
    """Return the output folder of a guard, whose `guard.json` names its other files."""
    return OutputFolder.of(path, _named_files, listed=False, force=force)


def save_guard(guard: Guard, path: str | os.PathLike[str], *, bundle: bool = False) -> Path:
    """Write a guard to a folder."""
    folder = guard_folder(path)
    if folder.path.is_file():
        raise StoreError(f"{folder}: is a file; pass a folder for the guard")
    manifest, calibration = guard.describe(), guard.rule().calibration
    tensors = {f"detector.{name}": value for name, value in guard.detector.state().items()}
    tensors |= {"calibration.scores": calibration.scores, "calibration.sizes": calibration.sizes}
    tensors |= {"seen": guard.detector.seen_rows()} | ({} if guard.gallery is None else guard.gallery.tensors())
    contents: dict[str, Content] = {}

    def add(kind: str, values: Mapping[str, Tensor]) -> dict[str, str]:
        content = packed(values)
        digest = sha256_of(content)
        contents[f"{kind}-{digest[:16]}.safetensors"] = content
        return {"file": f"{kind}-{digest[:16]}.safetensors", "sha256": digest}

    manifest["tensors"] = add("tensors", tensors)
    weights = guard.model.state_dict()
    if bundle and all(isinstance(value, Tensor) for value in weights.values()):  # weights of int8 layers are packed
        manifest["model"]["file"] = add("weights", weights)
    with locked(folder.path, wait=True):
        before = folder.files
        folder.write(contents | {MANIFEST: _DOCUMENT.text(manifest)})
        stale = before - folder.files
        # A copy of the weights stays unless other weights replace it: it may be the only one.
        discard(*(folder.path / name for name in stale if bundle or not name.startswith("weights-")))
    return folder.path


def load_guard(
    kind: type[Guard], folder: Path, model: str | nn.Module | SplitModel | None, weights: str | Path | None
) -> Guard:
    """Load a guard of this class from a folder; the other arguments are those of `Guard.load`."""
    manifest = read_manifest(folder)
    tensors = _DOCUMENT.tensors(manifest.tensors.below(folder), manifest.tensors.sha256)
    known = manifest.model
    how = None if manifest.preprocessing is None else Preprocessing.from_dict(manifest.preprocessing)
    if model is None or isinstance(model, str):
        split = _opened(folder, known, how, model, weights)
    elif isinstance(model, SplitModel):
        split = model
    else:
        split = SplitModel(model, known.layer, example=example_for(how), multi_label=known.multi_label)
    if (module_fingerprint(split.model), split.ending) != (known.fingerprint, known.ending):
        raise ModelError(
            f"{folder}: was calibrated with another network: the weights, or the code after layer {known.layer!r}, differ from those of"
            f" {known.spec or 'the calibrated one'}; load the same network, or calibrate again"
        )
    try:
        detector = build(manifest.detector["method"], **manifest.detector["options"])
        state = {key.removeprefix("detector."): value for key, value in tensors.items() if key.startswith("detector.")}
        detector.load_state(split.head, state)
        detector._learned_rows = tensors.get("seen")
        detector.to(split.device)
        guard = kind(split, detector, preprocessing=how, class_names=manifest.class_names, spec=known.spec)
        guard.gallery = Gallery.from_tensors(tensors)
        guard.input_range = manifest.input_range or range_of(how)
        calibration = Calibration(tensors["calibration.scores"], tensors["calibration.sizes"]).to(split.device)
        guard.adopt(calibration, manifest.recalls, known.fingerprint, manifest.confidence)
        guard.detection = manifest.detection
        guard.decide(guard.blank())  # so that mismatches fail here, not at the first image
    except IdnessError:
        raise
    except Exception as error:  # tensors of another method or version can raise anything
        raise _DOCUMENT.damaged(folder / MANIFEST, f"{type(error).__name__}: {error}") from error
    if isinstance(model, str):
        approve(model)
    return guard


def _opened(
    folder: Path, known: ModelEntry, how: Preprocessing | None, spec: str | None, weights: str | Path | None
) -> SplitModel:
    """Open the given network, or the one that the guard names, with the guard's copy of the weights if it has one."""
    if spec is None:
        if known.spec is None:
            raise ModelError(f"{folder}: does not name its network; pass model=")
        spec = approved(known.spec, code=known.code)
    if weights is None and known.file is not None:
        weights = known.file.below(folder)
        _DOCUMENT.bytes_of(weights, known.file.sha256)  # reports damage before anything is built
    options = ModelOptions(spec, weights, layer=known.layer, preprocessing=how, multi_label=known.multi_label)
    return open_network(options).split


def read_manifest(path: str | os.PathLike[str]) -> GuardManifest:
    """Return the checked content of a guard's `guard.json`, without its tensors."""
    return _DOCUMENT.read(Path(path) / MANIFEST)


def _named_files(folder: Path) -> set[str]:
    """Return the names of the files that a folder's `guard.json` lists; empty if it is missing or not a guard's."""
    try:
        known = read_manifest(folder)
    except StoreError:
        return set()
    entries = [known.tensors, *([known.model.file] if known.model.file is not None else [])]
    return {MANIFEST, *(entry.below(folder).name for entry in entries)}


def model_card(guard: Guard, repo_id: str) -> str:
    """Return the guard's model card for the hub: guarantee, method, network and limits."""
    facts, how = guard.describe(), guard.preprocessing
    spec = facts["model"]["spec"] or ""
    base = f"\nbase_model: {spec.removeprefix(PREFIX)}" if spec.startswith(PREFIX) else ""
    own = "" if spec and Script.named(spec) is None else ", model=network"
    named = "" if guard.class_names is None else f": {abridged(guard.class_names, 20)}"
    return f"""---
library_name: idness
pipeline_tag: image-classification
tags: [ood-detection, conformal]{base}
---

# {repo_id.rpartition("/")[2]}

An [idness](https://pypi.org/project/idness/) guard: it flags images that are out of distribution for an image classifier.

```python
from idness import Guard

guard = Guard.from_pretrained("{repo_id}"{own})
verdict = guard.judge("image.jpg")
```

{guard.promise()}

- recalls: {", ".join(f"{recall:g}" for recall in guard.recalls)}
- method: `{guard.method}`
- network: `{spec or facts["model"]["class"]}`, {guard.split.width} features, {guard.split.classes} classes{named}
- preprocessing: {"unknown" if how is None else how.describe()}
- versions: {", ".join(f"{name} {version}" for name, version in facts["versions"].items())}

## Limits

- The guarantee holds on average over calibration sets, and only for images from the same source as the calibration images. It does
  not cover how many OOD images are flagged.
- An image that is not flagged may still be misclassified.
- After a change of camera, preprocessing or classes, or when `idness score` reports drift, calibrate again.
"""

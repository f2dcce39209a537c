"""A guard on disk: a folder with `guard.json` and the safetensors file that it names; no pickle.

The tensors' file is named after its content, so that replacing `guard.json` in one step replaces the whole guard: a
reader sees the old one or the new one, after a crash too.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_bytes
from safetensors.torch import save as save_bytes
from torch import Tensor, nn

from idness.core.errors import IdnessError, ModelError, StoreError
from idness.core.files import atomic_write
from idness.detectors.registry import build
from idness.guard.conformal import Calibration
from idness.guard.neighbours import Gallery
from idness.networks.split import SplitModel, fingerprint, load_model, load_weights

if TYPE_CHECKING:
    from idness.guard.guard import Guard

FORMAT = 1
"""Version of the format; a file with a higher one is refused, lower ones keep loading."""
MANIFEST = "guard.json"
KEYS = ("format", "detector", "recalls", "model", "tensors", "checksum")


def save_guard(guard: Guard, path: str | os.PathLike[str], *, bundle: bool = False) -> Path:
    """Write a guard to a folder."""
    folder = Path(path)
    if folder.is_file():
        raise StoreError(f"cannot write the guard to {folder}: it is a file; give a folder")
    with _writing(folder):
        _save(guard, folder, bundle)
    return folder


def _save(guard: Guard, folder: Path, bundle: bool) -> None:
    calibration = guard.calibration
    assert calibration is not None  # Guard.save has looked
    tensors: dict[str, Tensor] = {"calibration.scores": calibration.scores, "calibration.sizes": calibration.sizes}
    tensors |= {f"detector.{name}": value for name, value in guard.detector.state().items()}
    if guard.gallery is not None:
        tensors |= guard.gallery.tensors()
    manifest = describe(guard) | {"format": FORMAT, "tensors": _write_tensors(folder, "tensors", tensors)}
    if bundle:
        manifest["model"]["file"] = _write_tensors(folder, "weights", _state(guard.model))
    atomic_write(
        folder / MANIFEST, json.dumps(manifest | {"checksum": _checksum(manifest)}, indent=2, ensure_ascii=False)
    )
    _remove_stale(folder, manifest)


def load_guard(path: str | os.PathLike[str], model: nn.Module | SplitModel | None = None) -> Guard:
    """Read a guard from a folder, and its network by name unless it is given."""
    from idness.guard.guard import Guard

    folder = Path(path)
    manifest, tensors = _read_both(folder)
    known = manifest["model"]
    if model is None:
        model = _load_network(folder, known)
    split = model if isinstance(model, SplitModel) else _split(model, known, folder)
    if fingerprint(split.model) != known["fingerprint"]:
        raise ModelError(
            f"{folder}: was calibrated with another network: the weights given are not those of {known['spec'] or known['class']};"
            " load the same weights, or calibrate anew"
        )
    try:
        detector = build(manifest["detector"]["method"], **manifest["detector"]["options"])
        state = {
            name.removeprefix("detector."): value for name, value in tensors.items() if name.startswith("detector.")
        }
        detector.load_state(split.head, state)
        guard = Guard(
            split,
            detector,
            preprocessing=_preprocessing(manifest),
            class_names=manifest.get("class_names"),
            spec=known["spec"],
        )
        device = split.linear.weight.device
        detector.to(device)
        guard.calibration = Calibration(tensors["calibration.scores"], tensors["calibration.sizes"]).to(device)
        guard.gallery = Gallery.from_tensors(tensors)
        return guard.set_recall(*manifest["recalls"])
    except (KeyError, TypeError, AttributeError) as error:
        if isinstance(error, IdnessError):
            raise
        raise _damaged(folder / MANIFEST, f"{type(error).__name__}: {error}") from error


def describe(guard: Guard) -> dict[str, Any]:
    """Describe a guard in plain values: what its file and its exported graph carry."""
    from idness import __version__

    calibration = guard.calibration
    return {
        "detector": guard.detector.config(),
        "recalls": list(guard.recalls),
        "thresholds": {f"{recall:g}": guard.threshold(recall).tolist() for recall in guard.recalls},
        "calibration_images": 0 if calibration is None else len(calibration),
        "per_class": calibration is not None and calibration.per_class,
        "model": {
            "spec": guard.spec,
            "class": type(guard.model).__name__,
            "layer": guard.split.layer,
            "fingerprint": fingerprint(guard.model),
        },
        "preprocessing": None if guard.preprocessing is None else guard.preprocessing.to_dict(),
        "class_names": None if guard.class_names is None else list(guard.class_names),
        "versions": {"idness": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }


def read_manifest(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read and check a guard's `guard.json`, without its tensors."""
    file = Path(path) / MANIFEST
    try:
        text = file.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StoreError(f"no guard at {path}: {MANIFEST} is not there; make one with idness calibrate") from error
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(file, str(error)) from error
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged(file, f"not JSON: {error}") from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("format"), int):
        raise _damaged(file, "no format version")
    if manifest["format"] > FORMAT:
        raise StoreError(
            f"{file}: is of format {manifest['format']}, and this idness reads up to {FORMAT}; upgrade with pip install -U idness"
        )
    if any(key not in manifest for key in KEYS) or manifest.pop("checksum") != _checksum(manifest):
        raise _damaged(file, "its checksum is not that of its content")
    return manifest


def _read_both(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    manifest = read_manifest(folder)
    try:
        return manifest, _read_tensors(folder, manifest["tensors"])
    except StoreError:
        # Another process may have replaced the guard between the two reads.
        fresh = read_manifest(folder)
        if fresh == manifest:
            raise
        return fresh, _read_tensors(folder, fresh["tensors"])


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Let one process at a time write, where the system has locks: each removes the other's files when it is done."""
    try:
        import fcntl

        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        yield  # what is wrong with the folder is said by the first write
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _write_tensors(folder: Path, kind: str, tensors: dict[str, Tensor]) -> dict[str, str]:
    content = save_bytes({name: value.detach().cpu().contiguous() for name, value in tensors.items()})
    digest = hashlib.sha256(content).hexdigest()
    name = f"{kind}-{digest[:16]}.safetensors"
    atomic_write(folder / name, content)
    return {"file": name, "sha256": digest}


def _read_tensors(folder: Path, entry: dict[str, str]) -> dict[str, Tensor]:
    # Only the name's last part counts: a manifest must not lead anywhere else.
    file = folder / Path(entry["file"]).name
    try:
        content = file.read_bytes()
    except OSError as error:
        raise _damaged(file, error.strerror or str(error)) from error
    if hashlib.sha256(content).hexdigest() != entry["sha256"]:
        raise _damaged(file, "its checksum is not the one that was saved")
    try:
        tensors: dict[str, Tensor] = load_bytes(content)
        return tensors
    except SafetensorError as error:
        raise _damaged(file, str(error)) from error


def _state(model: nn.Module) -> dict[str, Tensor]:
    # Tied weights share memory, which safetensors refuses: copies.
    return {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}


def _load_network(folder: Path, known: dict[str, Any]) -> nn.Module:
    from idness.networks import trust

    if known["spec"] is None:
        raise ModelError(f"{folder}: does not name its network ({known['class']}); give it: Guard.load(path, model)")
    trust.check(known["spec"])
    if "file" not in known:
        return load_model(known["spec"])
    _read_tensors(folder, known["file"])  # damage is told as damage, before anything is built from it
    return load_weights(load_model(known["spec"], "none"), folder / Path(known["file"]["file"]).name).eval()


def _split(model: nn.Module, known: dict[str, Any], folder: Path) -> SplitModel:
    try:
        return SplitModel(model, known["layer"])
    except ModelError as error:
        raise ModelError(
            f"{folder}: was calibrated with {known['spec'] or known['class']}, whose final layer is {known['layer']!r};"
            f" got {type(model).__name__}, which has none of that name"
        ) from error


def _preprocessing(manifest: dict[str, Any]) -> Any:
    from idness.data import Preprocessing

    stored = manifest.get("preprocessing")
    return None if stored is None else Preprocessing.from_dict(stored)


def _checksum(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _damaged(file: Path, why: str) -> StoreError:
    return StoreError(f"{file}: is damaged or incomplete ({why}); restore it or calibrate anew")


def _remove_stale(folder: Path, manifest: dict[str, Any]) -> None:
    kept = {manifest["tensors"]["file"], manifest["model"].get("file", {}).get("file")}
    for pattern in ("tensors-*.safetensors", "weights-*.safetensors"):
        for file in folder.glob(pattern):
            if file.name not in kept:
                file.unlink(missing_ok=True)

"""The folder that `idness train` writes: weights that name their network, its classes and its preprocessing."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file

from idness.core.errors import IdnessError, ModelError
from idness.core.scripts import approved
from idness.core.wording import shown
from idness.data import Preprocessing
from idness.data.duplicates import EXACT

LOG, WEIGHTS = "log.csv", "weights.safetensors"
IMAGES, DIGESTS = "images.safetensors", "digests"
"""The file with the hashes of the training images, and the tensor in it."""
KEPT = ("arch", "classes", "mean", "std", "size", "preprocessing")
"""The entries of the weights' metadata."""
INTERPOLATION = "bicubic"
"""How training resizes images."""


@dataclass(frozen=True)
class Facts:
    """What a weights file says of its network; empty if it was not written by `idness train`."""

    architecture: str = ""
    class_names: tuple[str, ...] = ()
    preprocessing: Preprocessing | None = None


def facts_of(weights: str | Path | None) -> Facts:
    """Read what a weights file says of its network."""
    file = Path(weights or "")
    if file.suffix != ".safetensors" or not file.is_file():
        return Facts()
    try:
        with safe_open(file, framework="pt") as opened:
            values = {name: json.loads(text) for name, text in (opened.metadata() or {}).items() if name in KEPT}
        return Facts(str(values.get("arch", "")), tuple(map(str, values.get("classes", ()))), _preprocessing(values))
    except (SafetensorError, OSError, ValueError, TypeError, IdnessError):
        return Facts()  # of another program, or damaged, which loading the weights reports


def located(model: str, weights: str | Path | None = None) -> tuple[str, str | Path | None]:
    """Return the network's name and weights if `model` is a run's folder; else both unchanged."""
    folder = Path(model)
    if not model or not folder.is_dir():
        return model, weights
    file = folder / WEIGHTS
    if not file.is_file():
        raise ModelError(f"{folder}: has no {WEIGHTS}; pass a folder that idness train wrote, once it is done")
    found = facts_of(file).architecture
    if not found:
        raise ModelError(f"{file}: does not name its network; pass model='NAME', weights={str(file)!r}")
    return approved(found, f"the network of {folder}", f", weights={str(file)!r}"), weights or file


def validation_accuracy(weights: str | Path | None) -> float | None:
    """Read a network's final validation accuracy from its run's log; `None` if there is none."""
    file = Path(weights or "").parent / LOG
    if weights is None or not file.is_file():
        return None
    try:
        with file.open(newline="", encoding="utf-8") as opened:
            *_, last = csv.DictReader(opened)
        found = float(last["val_accuracy"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if 0 <= found <= 1 else None


def trained_on(weights: str | Path | None) -> NDArray[np.uint8] | None:
    """Read the hashes of a network's training images; `None` if there are none."""
    file = Path(weights or "").parent / IMAGES
    if weights is None or not file.is_file():
        return None
    try:
        found: NDArray[np.uint8] = load_file(file)[DIGESTS]
        if found.dtype != np.uint8 or found.ndim != 2 or found.shape[1] != EXACT:
            raise ValueError(f"{DIGESTS} must be (N, {EXACT}) bytes, got {found.dtype} {found.shape}")
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise ModelError(
            f"{file}: is damaged ({shown(str(error), 200)}); delete it to continue without the check for training images"
        ) from error
    return found


def _preprocessing(values: Mapping[str, Any]) -> Preprocessing | None:
    """Read the preprocessing; runs of 0.1 have mean, std and size instead. Without a size, images are not resized."""
    if "preprocessing" in values:
        return Preprocessing.from_dict(values["preprocessing"])
    if "mean" not in values or "std" not in values:
        return None
    size = values.get("size")
    resize = {} if size is None else {"resize": tuple(size), "interpolation": INTERPOLATION}
    return Preprocessing.from_dict({"mean": values["mean"], "std": values["std"], **resize})

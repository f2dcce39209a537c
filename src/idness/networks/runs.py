"""What `idness train` leaves: a folder whose weights say which network they are of, its classes, and how pictures become its input."""

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
from idness.core.wording import shown
from idness.data import Preprocessing
from idness.data.duplicates import EXACT
from idness.networks import trust

LOG = "log.csv"
WEIGHTS = "weights.safetensors"
"""The file of a run's folder that holds its network's weights."""
IMAGES, DIGESTS = "images.safetensors", "digests"
"""The file that says by their hashes which images it was trained on, and the tensor in it."""
KEPT = ("arch", "classes", "mean", "std", "size", "preprocessing")
"""What the weights' metadata say of the network."""
INTERPOLATION = "bicubic"
"""How training brings pictures to its size."""


@dataclass(frozen=True)
class Facts:
    """Holds what a file of weights says of its network; nothing where it was not written by `idness train`.

    Args:
        architecture: how the network is named.
        class_names: the names of its classes, in the order of its outputs.
        preprocessing: how a picture becomes its input.
    """

    architecture: str = ""
    class_names: tuple[str, ...] = ()
    preprocessing: Preprocessing | None = None


def facts_of(weights: str | Path | None) -> Facts:
    """Read what a file of weights says of its network."""
    file = Path(weights or "")
    if file.suffix != ".safetensors" or not file.is_file():
        return Facts()
    try:
        with safe_open(file, framework="pt") as opened:
            said = opened.metadata() or {}
        values = {name: json.loads(said[name]) for name in KEPT if name in said}
        return Facts(str(values.get("arch", "")), tuple(map(str, values.get("classes", ()))), _preprocessing(values))
    except (SafetensorError, OSError, ValueError, TypeError, IdnessError):
        return Facts()  # of another program, or damaged, which reading the weights tells


def located(model: str, weights: str | Path | None = None) -> tuple[str, str | Path | None]:
    """Give the network's name and the weights of a run's folder; anything else as it is."""
    folder = Path(model)
    if not model or not folder.is_dir():
        return model, weights
    file = folder / WEIGHTS
    if not file.is_file():
        raise ModelError(f"{folder}: holds no {WEIGHTS}; give a folder that idness train wrote, once it is done")
    found = facts_of(file).architecture
    if not found:
        raise ModelError(
            f"{file}: does not say which network it is of; name it yourself: model='NAME', weights={str(file)!r}"
        )
    return trust.check(found, f"the network of {folder}", f", weights={str(file)!r}"), weights or file


def validation_accuracy(weights: str | Path | None) -> float | None:
    """Read how often a network was right on its validation images when `idness train` ended; none where nothing says so."""
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
    """Read the hashes of images that `idness train` trained a network on; none where nothing says so."""
    file = Path(weights or "").parent / IMAGES
    if weights is None or not file.is_file():
        return None
    try:
        found: NDArray[np.uint8] = load_file(file)[DIGESTS]
        if found.dtype != np.uint8 or found.ndim != 2 or found.shape[1] != EXACT:
            raise ValueError(f"{DIGESTS} must be (N, {EXACT}) bytes, got {found.dtype} {found.shape}")
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise ModelError(
            f"{file}: is damaged ({shown(str(error), 200)}); remove it, and images that were trained on are not noticed"
        ) from error
    return found


def _preprocessing(values: Mapping[str, Any]) -> Preprocessing | None:
    """Read what a picture goes through; in runs of 0.1, from mean, std and size; without a size, images are taken as they are."""
    if "preprocessing" in values:
        return Preprocessing.from_dict(values["preprocessing"])
    if "mean" not in values or "std" not in values:
        return None
    size = values.get("size")
    resize = {} if size is None else {"resize": tuple(size), "interpolation": INTERPOLATION}
    return Preprocessing.from_dict({"mean": values["mean"], "std": values["std"], **resize})

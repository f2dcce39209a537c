"""What a result rests on: versions and machine, images that are in two sets, and small copies of those shown."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import features

from idness.benchmark.parts import Wrong
from idness.core.errors import DataError
from idness.data import ActivationsFile, ImageSet
from idness.data.duplicates import common, near
from idness.data.preprocess import thumbnail
from idness.metrics import Array


def provenance(command: str, seed: int) -> dict[str, Any]:
    """Record versions, machine, time, seed and command."""
    versions = {name: _version(name) for name in ("idness", "torch", "torchvision", "timm", "numpy", "pillow")}
    versions |= {"python": platform.python_version(), "libjpeg": features.version("jpg") or ""}
    return {
        "command": command,
        "seed": seed,
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "versions": {name: version for name, version in versions.items() if version},
        "machine": {"cpu": platform.machine(), "cores": os.cpu_count() or 0, "threads": torch.get_num_threads()},
    }


@dataclass(frozen=True)
class Known:
    """Holds by what the images of a set are known again."""

    role: str
    data: ImageSet | ActivationsFile
    digests: Array
    index: Array


def peak_memory() -> int:
    """Give the most memory this process ever held, in bytes; 0 where the system does not say."""
    try:
        # What getrusage tells on Linux begins with the memory of the process that started this one.
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        pass
    try:
        import resource
    except ImportError:
        return 0
    # Linux counts in kilobytes, macOS in bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def duplicates(sets: Mapping[str, Known]) -> list[dict[str, Any]]:
    """Find images that are in an ID and an OOD set, or both chosen on and tested on: the same ones, and near copies."""
    found = []
    for (first, one), (second, other) in combinations(sets.items(), 2):
        if not _must_differ(one.role, other.role):
            continue
        same, alike = common(one.digests, other.digests), 0
        if isinstance(one.data, ImageSet) and isinstance(other.data, ImageSet):
            alike = near(one.digests, other.digests, (one.data, other.data), (one.index, other.index))
        if same or alike:
            found.append({"sets": [first, second], "images": same, "near": alike})
    return found


def told(pair: Mapping[str, Any]) -> str:
    """Say in one line what two sets have in common."""
    sets = " and ".join(map(str, pair.get("sets", [])))
    same, alike = pair.get("images"), pair.get("near", 0)
    lines = [f"{_images(same)} in both {sets}"] if same else []
    lines += [f"{_images(alike)} nearly the same in {sets}"] if alike else []
    return "; ".join(lines)


def _images(count: int) -> str:
    return "1 image is" if count == 1 else f"{count} images are"


def thumbnails(
    wrong: Mapping[str, Mapping[str, Sequence[Wrong]]], sets: Mapping[str, ImageSet | ActivationsFile]
) -> dict[str, NDArray[np.uint8]]:
    """Make small copies of the images that detectors get most wrong, by `set/index`."""
    wanted = sorted(
        {(entry.set, entry.index) for parts in wrong.values() for listed in parts.values() for entry in listed}
    )
    found: dict[str, NDArray[np.uint8]] = {}
    for name, index in wanted:
        images = sets[name]
        if not isinstance(images, ImageSet):
            continue
        try:
            found[f"{name}/{index}"] = np.array(thumbnail(images.picture(index)))
        except DataError:
            continue  # gone since it was scored; the report does without
    return found


def _must_differ(first: str, second: str) -> bool:
    tested = {"id_test", "near", "far"}
    return first.startswith("id_") != second.startswith("id_") or (first in tested) != (second in tested)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""

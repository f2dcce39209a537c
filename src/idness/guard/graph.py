"""Judges images with an exported guard: onnxruntime alone, which starts in a fraction of the time that torch takes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idness.core.errors import DataError, StoreError
from idness.core.extras import needed
from idness.core.progress import Listener
from idness.core.wording import shown
from idness.data.batches import read_batches
from idness.data.preprocess import Preprocessing
from idness.data.sets import SET_SUFFIXES, ImageSet, file_sets
from idness.guard.drift import KnownScores
from idness.guard.outside import external_files

SUFFIX = ".onnx"
BATCH = 16
NOT_FINITE = "the network's output is not finite (NaN or Inf)"
FAR_ABOVE = "its ID-ness is far above that of every calibration image; is the input the same kind as at calibration?"


class GraphGuard:
    """A guard as `Guard.to_onnx` wrote it: network, detector and threshold in one graph, which torch is not needed for.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        runtime = needed("onnxruntime", "score", "onnx", StoreError)
        if not path.is_file():
            raise StoreError(f"{path}: is not there; write it with idness export")
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS") or 0)
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            content = path.read_bytes()
            elsewhere = external_files(content)
        except (OSError, ValueError) as error:
            raise _damaged(path) from error
        if elsewhere:
            raise StoreError(
                f"{path}: takes its numbers from another file, {shown(elsewhere[0], 100)!r}, which is not opened;"
                " idness export writes all into one: export the guard anew"
            )
        try:
            self.session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
            told = self.session.get_modelmeta().custom_metadata_map
            self.facts: dict[str, Any] = json.loads(told["idness"])
            self.ceiling = float(json.loads(told.get("ceiling", "Infinity")))
            how, names = self.facts.get("preprocessing"), self.facts.get("class_names")
            self.class_names: tuple[str, ...] | None = None if names is None else tuple(map(str, names))
            # Version 0.1 exported no scores: then drift is not looked for.
            scores = told.get("calibration")
            self.calibration = None if scores is None else KnownScores.parse(scores)
        except Exception as error:  # onnxruntime has errors of its own for each way in which a file can be wrong
            raise _damaged(path) from error
        if not isinstance(how, dict):
            raise StoreError(
                f"{path}: does not say how pictures become its input; give the guard a preprocessing and export it anew"
            )
        self.preprocessing = Preprocessing.from_dict(how)

    def judge(
        self, paths: Iterable[Path], *, batch: int | None = None, listener: Listener | None = None
    ) -> Iterator[dict[str, Any]]:
        """Judge image files one after another; a file that cannot be read gets its reason and no verdict."""
        # A list is read ahead; paths that arrive one by one are judged as they arrive.
        for files in file_sets(paths, len(paths) if isinstance(paths, Sequence) else self._size(batch)):
            for name in files.items:
                if Path(name).suffix.lower() in SET_SUFFIXES:
                    raise DataError(
                        f"{name}: holds many images; add --out, or use the guard's folder instead of its export"
                    )
            for name, record in zip(files.items, self.judge_set(files, batch=batch, listener=listener), strict=True):
                yield {"image": name} | record

    def judge_set(
        self, images: ImageSet, *, batch: int | None = None, listener: Listener | None = None
    ) -> Iterator[dict[str, Any]]:
        """Judge the images of a set one after another; one that cannot be read gets its reason and no verdict."""
        hear, size = listener or Listener(), self._size(batch)
        spans = ((start, min(start + size, len(images))) for start in range(0, len(images), size))
        for read in read_batches(images, self.preprocessing, spans):
            records, unread = iter(self._records(read.pixels)), dict(read.skipped)
            hear.advance(read.stop - read.start)
            for index in range(read.start, read.stop):
                yield {"error": unread[index]} if index in unread else next(records)

    def _size(self, batch: int | None) -> int:
        """Give the images per batch; without a fixed size each picture is a batch of its own."""
        return (batch or BATCH) if self.preprocessing.size is not None else 1

    def _records(self, pixels: NDArray[np.uint8]) -> list[dict[str, Any]]:
        """Run the graph; the records are those of `Verdict.records`."""
        if not len(pixels):
            return []
        found = self.session.run(None, {"images": self.preprocessing.normalize_array(pixels)})
        return [
            {
                "label": int(label),
                "class": self._name(int(label)),
                "score": float(score),
                "p_value": float(p_value),
                "is_ood": bool(is_ood),
                "reason": NOT_FINITE if label < 0 else None,
                "caution": FAR_ABOVE if score > self.ceiling else None,
            }
            for label, score, p_value, is_ood in zip(*found, strict=True)
        ]

    def _name(self, label: int) -> str:
        if label < 0:
            return "none"
        return self.class_names[label] if self.class_names else str(label)


def _damaged(path: Path) -> StoreError:
    return StoreError(f"{path}: is no guard that idness export wrote, or is damaged; export it anew")

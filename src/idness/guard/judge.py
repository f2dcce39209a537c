"""Judges image files with a guard, many at a time."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from idness.core.errors import DataError
from idness.data import SUFFIXES
from idness.guard.guard import Guard

BATCH = 64


def find_images(arguments: Iterable[str]) -> Iterator[Path]:
    """Find the image files behind files, folders and patterns, in order; what is not there is told at once."""
    for text in arguments:
        path = Path(text).expanduser()
        if path.is_dir():
            found = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
        elif path.exists():
            found = [path]
        else:
            # A file whose name looks like a pattern was found above.
            found = sorted(Path(name) for name in glob.glob(str(path), recursive=True))  # noqa: PTH207
            found = [file for file in found if file.is_file()]
        if not found:
            raise DataError(
                f"no image at {text}; give files, folders, patterns in quotes, or - to read a list of paths"
            )
        yield from found


def judge_images(guard: Guard, paths: Iterable[Path], *, batch: int = BATCH) -> Iterator[dict[str, Any]]:
    """Judge image files one after another; a file that cannot be read gets its reason and no verdict."""
    waiting = iter(paths)
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        while chunk := list(islice(waiting, batch)):
            yield from _judged(guard, list(zip(chunk, pool.map(partial(_prepared, guard), chunk), strict=True)))


def _prepared(guard: Guard, path: Path) -> torch.Tensor | str:
    try:
        return guard.prepare(path)
    except DataError as error:
        return str(error)


def _judged(guard: Guard, waiting: Sequence[tuple[Path, torch.Tensor | str]]) -> Iterator[dict[str, Any]]:
    tensors = [item for _, item in waiting if isinstance(item, torch.Tensor)]
    if len({tensor.shape for tensor in tensors}) > 1:
        # Without a fixed size each picture is a batch of its own.
        records = iter([guard(tensor).records()[0] for tensor in tensors])
    else:
        records = iter(guard(torch.stack(tensors)).records() if tensors else [])
    for path, item in waiting:
        if isinstance(item, str):
            yield {"image": str(path), "error": item}
        else:
            yield {"image": str(path)} | next(records)

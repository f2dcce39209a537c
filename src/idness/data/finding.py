"""Finds image files behind what a user names."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator
from pathlib import Path

from idness.core.errors import DataError
from idness.data.sets import images_below

SETS = frozenset({".npz", ".txt", ".parquet", ".arrow", ".tar"})
"""How the names of files end that hold or list many images."""


def find_images(arguments: Iterable[str]) -> Iterator[Path]:
    """Find the image files behind files, folders and patterns, in order; what is not there is told at once."""
    for text in arguments:
        path = Path(text).expanduser()
        if path.is_dir():
            found = images_below(path)
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

"""Sets of images in arrays, in memory or in .npz files, and bounded reading of .npz files."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from idness.core.errors import DataError
from idness.core.files import sha256_of
from idness.data.decoding import MAX_PIXELS
from idness.data.sets import ImageSet, Picture, pick
from idness.data.urls import UrlPath


class ArraySet(ImageSet):
    """Images in an array (N, H, W), (N, H, W, channels) or (N, channels, H, W) of uint8; grey ones become RGB."""

    def __init__(
        self,
        images: NDArray[np.uint8],
        source: str,
        labels: NDArray[np.int64] | None = None,
        classes: Sequence[str] = (),
    ) -> None:
        super().__init__(source, labels, classes)
        self.channels = _check_images(source, images.dtype, images.shape)
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def picture(self, index: int) -> Picture:
        return _as_picture(self.images[index])

    def portion(self, start: int, stop: int) -> ImageSet:
        return ArraySet(self.images[start:stop], self.source)

    def stamp(self, start: int, stop: int) -> str:
        return sha256_of(np.ascontiguousarray(self.images[start:stop]).data)


class NpzSet(ImageSet):
    """Images of an array in an .npz file, read row by row: the file is never in memory as a whole.

    The arrays of images and labels are found by their usual names if they are not given.
    """

    def __init__(
        self, path: Path, images: str | None = None, labels: str | None = None, classes: Sequence[str] = ()
    ) -> None:
        super().__init__(path.name, None, classes)
        self.path = path
        try:
            names = array_names(path)
            self.reads = pick(path.name, "array", "images", images, ("images", "data", "x", "arr_0"), names)
            label_key = pick(path.name, "array", "labels", labels, ("labels", "label", "y", "targets"), names)
            self._file: IO[bytes] | None = self._open()
            self.close()  # its header has been read
            if label_key:
                self.labels = _read_labels(path, label_key, len(self))
        except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{path.name}: is no .npz file of uint8 images ({error})") from error
        self._stamps: dict[tuple[int, int], str] = {}

    def __len__(self) -> int:
        return self._shape[0]

    def picture(self, index: int) -> Picture:
        return _as_picture(np.frombuffer(self._bytes_of(index), dtype=np.uint8).reshape(self._shape[1:]))

    def stamp(self, start: int, stop: int) -> str:
        if (start, stop) not in self._stamps:
            chosen = range(start, min(stop, len(self)))
            self._stamps[start, stop] = sha256_of(self._bytes_of(index) for index in chosen)
        return self._stamps[start, stop]

    def files(self, start: int, stop: int) -> Iterable[Path | UrlPath]:
        return (self.path,)

    def present(self) -> bool:
        return self.path.exists()

    def __getstate__(self) -> dict[str, Any]:
        self.close()
        return self.__dict__ | {"path": self.path.absolute(), "labels": None, "_stamps": {}}

    def close(self) -> None:
        """Close the file; reading opens it again."""
        file: IO[bytes] | None = self.__dict__.get("_file")
        if file is not None:
            file.close()
        self._file, self._row = None, 0

    def __del__(self) -> None:
        self.close()

    def _bytes_of(self, index: int) -> bytes:
        size = int(np.prod(self._shape[1:]))
        data = b""
        try:
            if index < self._row:
                self.close()
            if self._file is None:
                self._file = self._open()
            while self._row <= index:
                # Rows in between are read and dropped: a compressed stream cannot be seeked.
                data = self._file.read(size)
                self._row += 1
        except (OSError, zipfile.BadZipFile, zlib.error, EOFError, ValueError) as error:
            self.close()
            raise DataError(f"{self.path.name}: is damaged at image {index} ({error})") from error
        if len(data) != size:
            raise DataError(f"{self.path.name}: ends before image {index}")
        if self._row == len(self):
            self.close()
        return data

    def _open(self) -> IO[bytes]:
        file, self._shape, kind = open_array(self.path, self.reads)
        self.channels = _check_images(f"{self.path.name}: array {self.reads}", kind, self._shape)
        return file


def array_names(path: Path) -> list[str]:
    """Return the names of the arrays of an .npz file."""
    with zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]


def open_array(path: Path, name: str) -> tuple[IO[bytes], tuple[int, ...], np.dtype[Any]]:
    """Open an array of an .npz file at its first value, and return its shape and type; arrays of objects are refused."""
    with zipfile.ZipFile(path) as archive:
        try:
            file = archive.open(f"{name}.npy")  # stays readable: the archive closes with its last member
        except RuntimeError as error:  # encrypted, or packed by an unknown method
            raise DataError(f"{path.name}: array {name} cannot be read ({error}); save it with np.savez") from error
    version = np.lib.format.read_magic(file)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, kind = header(file)
    if kind.hasobject:
        raise DataError(f"{path.name}: array {name} holds Python objects, which could run code; save numbers")
    if fortran and len(shape) > 1:
        raise DataError(f"{path.name}: array {name} must be in C order; save np.ascontiguousarray of it")
    return file, shape, kind


def _as_picture(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return an image as (H, W, channels), grey as RGB: converting it back to grey is exact."""
    if image.ndim == 3 and _channel_axis(image.shape) == 0:
        image = np.ascontiguousarray(image.transpose(1, 2, 0))
    elif image.ndim == 2:
        image = image[:, :, None]
    return np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image


def _channel_axis(shape: tuple[int, ...]) -> int | None:
    """Return the axis of the channels: one of length 1 or 3, else the shortest if it is the first or the last."""
    for axis in (2, 0):
        if shape[axis] in (1, 3):
            return axis
    return next((axis for axis in (2, 0) if shape[axis] < min(shape[1], shape[2 - axis])), None)


def _check_images(name: str, dtype: Any, shape: tuple[int, ...]) -> int:
    """Check that an array holds images, and return their number of channels."""
    axis = _channel_axis(shape[1:]) if len(shape) == 4 else None
    if dtype != np.uint8 or (len(shape) != 3 and axis is None) or 0 in shape[1:]:
        raise DataError(
            f"{name}: images must be uint8 of shape (N, H, W), (N, H, W, channels) or (N, channels, H, W), got {dtype} of shape {shape}"
        )
    found = 1 if axis is None else shape[1 + axis]
    if math.prod(shape[1:]) > found * MAX_PIXELS:
        raise DataError(f"{name}: images must have at most {MAX_PIXELS:,} pixels, got shape {shape}; make them smaller")
    return 3 if found == 1 else found


def _read_labels(path: Path, name: str, count: int) -> NDArray[np.int64]:
    """Return the labels of `count` images; the header is checked before anything is decompressed."""
    file, shape, kind = open_array(path, name)
    with file:
        if len(shape) != 1 or not np.issubdtype(kind, np.integer):
            raise DataError(f"{path.name}: labels must be a list of whole numbers, got {kind} of shape {shape}")
        if shape != (count,):
            raise DataError(f"{path.name}: must have one label per image, got {shape[0]} for {count} images")
        return np.frombuffer(file.read(count * kind.itemsize), kind, count).astype(np.int64)

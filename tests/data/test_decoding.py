from __future__ import annotations

import io
import struct
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch  # noqa: F401  JPEGs are decoded to arrays if it is imported
from PIL import Image

from idness.core.errors import DataError
from idness.data import decode
from idness.data.decoding import decode_picture, is_animated


def encoded(image: Image.Image, format_: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=format_, **options)
    return buffer.getvalue()


def png(width: int, height: int, depth: int, rows: bytes) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def gradient(mode: str = "RGB", size: tuple[int, int] = (24, 16)) -> Image.Image:
    y, x = np.mgrid[: size[1], : size[0]]
    array = np.stack([x * 10, y * 15, (x + y) * 6], axis=2).astype(np.uint8)
    return Image.fromarray(array).convert(mode)


@pytest.mark.parametrize("format_", ["PNG", "BMP", "GIF", "TIFF", "PPM", "WEBP"])
def test_lossless_formats_keep_every_pixel(format_: str) -> None:
    image = gradient("L").convert("RGB") if format_ == "GIF" else gradient()
    options = {"lossless": True} if format_ == "WEBP" else {}
    assert np.array_equal(np.asarray(decode(encoded(image, format_, **options))), np.asarray(image))


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA", "I;16"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    if mode == "I;16":
        image = Image.fromarray((np.asarray(gradient("L")).astype(np.uint16) << 8) + 7)
        expected = gradient("L").convert("RGB")
    else:
        image = gradient(mode)
        expected = image.convert("RGB")
    result = decode(encoded(image, "PNG"))
    assert result.mode == "RGB"
    assert np.array_equal(np.asarray(result), np.asarray(expected))


def test_sixteen_bit_colour_keeps_the_upper_byte() -> None:
    row = b"\0" + struct.pack(">6H", 0x1234, 0xABCD, 0xFFFF, 0x00FF, 0x8000, 0x0100)
    assert np.asarray(decode(png(2, 1, 16, row))).tolist() == [[[0x12, 0xAB, 0xFF], [0x00, 0x80, 0x01]]]


def test_transparent_parts_are_white_whatever_is_beneath() -> None:
    image = Image.new("RGBA", (2, 1), (255, 0, 0, 0))
    image.putpixel((1, 0), (10, 20, 30, 255))
    assert np.asarray(decode(encoded(image, "PNG"))).tolist() == [[[255, 255, 255], [10, 20, 30]]]
    image = gradient("P")
    result = np.asarray(decode(encoded(image, "PNG", transparency=image.getpixel((0, 0)))))
    assert result[0, 0].tolist() == [255, 255, 255]


def test_exif_orientation_is_applied() -> None:
    image = Image.new("RGB", (30, 10))
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(image, "JPEG", exif=exif)
    assert decode(data).size == decode_picture(data).size == (10, 30)  # type: ignore[comparison-overlap]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty file"),
        (b"<!DOCTYPE html><html>", "must be one of JPEG.*, got something else$"),
        *((encoded(gradient(), kind), "must be one of JPEG") for kind in ("TGA", "PCX", "ICO", "SGI")),
        (encoded(Image.fromarray(np.zeros((4, 4), np.float32)), "TIFF"), "got a floating-point image"),
        (encoded(Image.fromarray(np.zeros((4, 4), np.int32)), "TIFF"), "got a 32-bit image"),
    ],
)
def test_what_is_not_an_image_is_reported_in_one_line(data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        decode(data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("format_", ["PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP"])
def test_truncated_files_are_refused(format_: str) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8))
    data = encoded(noise, format_)
    with pytest.raises(DataError, match=r"^image: is (truncated \(its end is missing\)|damaged); save or send it"):
        decode(data[: len(data) // 2])


@pytest.mark.parametrize("format_", ["GIF", "WEBP", "TIFF", "PNG"])
def test_frames_beyond_the_first_are_noticed(format_: str) -> None:
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "blue")]
    data = encoded(frames[0], format_, save_all=True, append_images=frames[1:])
    assert is_animated(data)
    assert np.asarray(decode(data))[0, 0].argmax() == 0  # the first frame is red
    assert not is_animated(encoded(frames[0], format_))
    assert not is_animated(b"")


def test_an_image_with_too_many_pixels_is_reported_with_its_size() -> None:
    data = encoded(Image.new("RGB", (100, 60)), "PNG")
    assert decode(data, max_pixels=6000).size == (100, 60)
    with pytest.raises(DataError, match="at most 5,999 pixels, got 100 x 60; resize it"):
        decode(data, max_pixels=5999)
    for side in (10_000, 40_000):  # bombs
        start = time.perf_counter()
        with pytest.raises(DataError, match="pixels"):
            decode(png(side, side, 8, bytes(1000)))
        assert time.perf_counter() - start < 0.5


def test_a_missing_file_is_reported_by_name_only(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^gone.png: cannot be read") as caught:
        decode(tmp_path / "gone.png")
    assert str(tmp_path) not in str(caught.value)


def photograph(size: tuple[int, int] = (83, 61)) -> Image.Image:
    noise = np.random.default_rng(0).integers(0, 256, (size[1] // 4 + 2, size[0] // 4 + 2, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)


@pytest.mark.parametrize("size", [(83, 61), (64, 64), (1, 1), (7, 130)])
@pytest.mark.parametrize("options", [{"subsampling": 0}, {"subsampling": 1}, {"subsampling": 2}, {"progressive": True}])
def test_simplejpeg_returns_the_pixels_of_pillow(size: tuple[int, int], options: dict[str, object]) -> None:
    data = encoded(photograph(size), "JPEG", quality=88, **options)
    found = decode_picture(data)
    assert isinstance(found, np.ndarray)
    assert np.array_equal(found, np.asarray(decode(data)))


def test_both_decoders_report_the_same_damage() -> None:
    data = encoded(photograph((300, 200)), "JPEG")
    slight = data[:1500] + bytes(40) + data[1540:]  # Pillow decodes it
    assert np.array_equal(np.asarray(decode_picture(slight)), np.asarray(decode(slight)))
    for read in (decode, decode_picture):
        with pytest.raises(DataError, match="truncated"):
            read(data[: len(data) // 2])
        with pytest.raises(DataError, match="at most 100 pixels"):
            read(data, max_pixels=100)

"""Duplicates by the pixels of images, and near-duplicates."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import numpy as np
import pytest
from colour_world import known, ood_picture, write_folder
from PIL import Image

from idness.data import embedded, open_set
from idness.data.duplicates import DIGEST, EXACT, common, digest, digests, exact_digests, near, same_look, within
from idness.data.sets import ImageSet
from tests.cli.running import idness


def hashed(images: ImageSet) -> np.ndarray:
    return np.stack([np.frombuffer(digest(images.picture(index)), np.uint8) for index in range(len(images))])


def save(folder: Path, pictures: list[Image.Image]) -> ImageSet:
    folder.mkdir()
    for index, picture in enumerate(pictures):
        picture.save(folder / f"{index}.png")
    return open_set(str(folder))


def harmed(picture: Image.Image, seed: int) -> Image.Image:
    """The same image as a JPEG of another size, a little darker."""
    small = picture.resize((picture.width * 3 // 2, picture.height * 3 // 2), Image.Resampling.BICUBIC)
    buffer = io.BytesIO()
    Image.fromarray((np.asarray(small) * 0.95).astype(np.uint8)).save(buffer, "JPEG", quality=70 + seed % 20)
    return Image.open(buffer)


@pytest.mark.fault(
    "near-duplicates of ID images among OOD or training images: another size, format, brightness",
    does="bench and calibrate report their number, found by a perceptual hash and checked against the pixels",
)
def test_near_duplicates_are_found(tmp_path: Path) -> None:
    loaded = embedded.load("id_test").images
    pictures = [Image.fromarray(image) for image in loaded[:120]]
    ids = save(tmp_path / "ids", pictures[:60])
    copies = save(
        tmp_path / "copies", [harmed(picture, seed) for seed, picture in enumerate(pictures[40:60])] + pictures[60:120]
    )
    one, two = hashed(ids), hashed(copies)
    places = np.arange(len(ids)), np.arange(len(copies))
    assert common(one, two) == 0
    assert 18 <= near(one, two, (ids, copies), places) <= 20
    others = save(tmp_path / "others", pictures[60:120])
    assert near(one, hashed(others), (ids, others), (places[0], np.arange(60))) == 0


def test_hashes_of_some_images_are_from_all_over_a_set(tmp_path: Path) -> None:
    images = save(tmp_path / "ids", [known("red", seed) for seed in range(12)])
    every = hashed(images)[:, :EXACT]
    assert np.array_equal(exact_digests(images, 12), every)
    assert np.array_equal(exact_digests(images, 5), every[::3])
    (tmp_path / "ids" / "0.png").write_bytes(b"no picture")
    assert np.array_equal(exact_digests(images, 12), every[1:])


def test_similar_images_are_not_near_duplicates() -> None:
    rng = np.random.default_rng(0)
    one = rng.uniform(0, 200, (16, 16)).astype(np.float32)
    assert same_look(one, one + rng.normal(0, 5, (16, 16)).astype(np.float32))
    assert not same_look(one, one + rng.normal(0, 25, (16, 16)).astype(np.float32))  # alike, but another structure
    assert not same_look(one, one + 30)  # the same structure, but of another picture


def test_plain_images_have_no_perceptual_hash() -> None:
    for picture in (Image.new("RGB", (40, 30)), Image.new("RGB", (5, 5), "white")):
        assert digest(picture)[EXACT:] == bytes(8)
    assert digest(known("red", 1))[EXACT:] != digest(ood_picture(1))[EXACT:]
    assert len(digest(np.zeros((20, 20, 7), np.uint8))) == DIGEST


@pytest.mark.parametrize("shape", [(32, 32, 3), (13, 30, 3), (87, 48, 3), (3, 7, 3), (20, 20, 7)])
def test_images_hashed_together_have_the_hashes_of_single_ones(shape: tuple[int, ...]) -> None:
    arrays = list(np.random.default_rng(0).integers(0, 256, (9, *shape), np.uint8))
    mixed = [*arrays, known("red", 1), *embedded.load("id_test").images[:3]]
    assert list(digests(mixed)) == [digest(picture) for picture in mixed]


def test_duplicates_within_a_set_and_in_a_compressed_array_are_read_in_order(tmp_path: Path) -> None:
    images = embedded.load("id_test").images[:40]
    copies = [np.asarray(harmed(Image.fromarray(image), 0).resize((32, 32))) for image in images[:10]]
    np.savez_compressed(tmp_path / "x.npz", images=np.concatenate([images, images[:3], copies[::-1]]))
    data = open_set(str(tmp_path / "x.npz"))
    assert isinstance(data, ImageSet)
    known, read = hashed(data), list[int]()
    seen = data.picture
    data.picture = lambda index: (read.append(index), seen(index))[1]  # type: ignore[func-returns-value,method-assign]
    repeated, alike = within(known, data, np.arange(len(data)))
    assert repeated == 3
    assert 20 <= alike <= 23  # the images with a copy, their repetitions and the copies
    assert sum(before > after for before, after in itertools.pairwise(read)) <= 1


def test_calibrate_reports_near_duplicates(net_spec: str, weights: Path, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data", 15)
    (tmp_path / "train").mkdir()
    for place, file in enumerate(sorted(data.rglob("*.png"))[:30]):
        harmed(Image.open(file), place).save(tmp_path / "train" / f"{place}.png")
    made = idness(
        "calibrate", net_spec, "--weights", weights, "--data", data, "--train", tmp_path / "train", "--method", "knn(k=1)",
        "-o", tmp_path / "guard", "--no-thumbnails",
    )  # fmt: skip
    assert made.returncode == 0
    assert "have near-duplicates in train (train)" in made.stderr

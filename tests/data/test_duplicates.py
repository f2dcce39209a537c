"""Images that are known again: the same pixels, and near copies."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from colour_world import known, ood_picture, write_folder
from PIL import Image

from idness.core.errors import DataError
from idness.data import ArraySet, Preprocessing, duplicates, embedded, open_set, read_batches
from idness.data.duplicates import DIGEST, EXACT, candidates, common, digest, exact_digests, look, near, same_look
from idness.data.sets import ImageSet
from tests.cli.running import idness


def digests(images: ImageSet) -> np.ndarray:
    return np.stack([np.frombuffer(digest(images.picture(index)), np.uint8) for index in range(len(images))])


def save(folder: Path, pictures: list[Image.Image]) -> ImageSet:
    folder.mkdir()
    for index, picture in enumerate(pictures):
        picture.save(folder / f"{index}.png")
    return open_set(str(folder))


def harmed(picture: Image.Image, seed: int) -> Image.Image:
    """The same picture as a JPEG of another size, a little darker."""
    small = picture.resize((picture.width * 3 // 2, picture.height * 3 // 2), Image.Resampling.BICUBIC)
    buffer = io.BytesIO()
    Image.fromarray((np.asarray(small) * 0.95).astype(np.uint8)).save(buffer, "JPEG", quality=70 + seed % 20)
    return Image.open(buffer)


@pytest.mark.fault(
    "near copies of ID images among OOD or training images: another size, format, brightness",
    does="bench and calibrate count and tell them, by a hash of the look that is checked against the pictures",
)
def test_near_copies_are_found_and_other_images_are_not(tmp_path: Path) -> None:
    loaded = embedded.load("id_test").images
    pictures = [Image.fromarray(image) for image in loaded[:120]]
    ids = save(tmp_path / "ids", pictures[:60])
    copies = save(
        tmp_path / "copies", [harmed(picture, seed) for seed, picture in enumerate(pictures[40:60])] + pictures[60:120]
    )
    one, two = digests(ids), digests(copies)
    places = np.arange(len(ids)), np.arange(len(copies))
    assert common(one, two) == 0
    assert 18 <= near(one, two, (ids, copies), places) <= 20
    others = save(tmp_path / "others", pictures[60:120])
    assert near(one, digests(others), (ids, others), (places[0], np.arange(60))) == 0


def test_hashes_of_some_images_are_from_all_over_a_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = save(tmp_path / "ids", [known("red", seed) for seed in range(12)])
    every = digests(images)[:, :EXACT]
    assert np.array_equal(exact_digests(images, 12), every)
    assert np.array_equal(exact_digests(images, 5), every[::3])
    (tmp_path / "ids" / "0.png").write_bytes(b"no picture")
    assert np.array_equal(exact_digests(images, 12), every[1:])
    monkeypatch.setattr(images, "blocks", lambda: [0, 4, 8, 12])  # which are read as a whole
    assert np.array_equal(exact_digests(images, 6), every[[*range(1, 4), 8, 9]])


def test_a_like_look_is_not_enough() -> None:
    rng = np.random.default_rng(0)
    one = rng.uniform(0, 200, (16, 16)).astype(np.float32)
    assert same_look(one, one + rng.normal(0, 5, (16, 16)).astype(np.float32))
    assert not same_look(one, one + rng.normal(0, 25, (16, 16)).astype(np.float32))  # alike, but another structure
    assert not same_look(one, one + 30)  # the same structure, but of another picture


def test_plain_pictures_have_no_look() -> None:
    for picture in (Image.new("RGB", (40, 30)), Image.new("RGB", (5, 5), "white")):
        assert look(picture) == bytes(8)
    assert look(known("red", 1)) != look(ood_picture(1))
    array = np.zeros((20, 20, 7), np.uint8)
    array[:, 10:] = 200
    assert len(digest(array)) == EXACT + 8


@pytest.mark.parametrize("size", [(32, 32), (33, 47), (7, 8), (1, 9), (64, 64), (120, 40), (1, 1), (96, 100)])
def test_pictures_that_are_hashed_together_have_the_digests_of_single_ones(size: tuple[int, int]) -> None:
    rng = np.random.default_rng(sum(size))
    arrays = [rng.integers(0, 256, (*size, 3), dtype=np.uint8) for _ in range(65)]
    for count in (0, 1, 2, 65):
        assert duplicates.digests(arrays[:count]) == [digest(array) for array in arrays[:count]]
    mixed = [arrays[0], Image.fromarray(arrays[1]), arrays[2][:, :1], rng.integers(0, 256, (9, 9, 5), dtype=np.uint8)]
    assert duplicates.digests(mixed) == [digest(picture) for picture in mixed]


class Torn(ArraySet):
    """Images of which each seventh cannot be read."""

    def picture(self, index: int) -> np.ndarray:
        if index % 7 == 3:
            raise DataError(f"{index} is torn")
        found = super().picture(index)
        assert isinstance(found, np.ndarray)
        return found


@pytest.mark.parametrize("side", [32, 200])
def test_digests_stay_with_their_images_where_some_cannot_be_read(side: int) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (150, side, side, 3), dtype=np.uint8)
    how = Preprocessing(resize=None, crop=None, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    [batch] = read_batches(Torn(pixels, "torn"), how, [(0, 150)])
    good = [index for index in range(150) if index % 7 != 3]
    assert batch.index.tolist() == good
    assert [row.tobytes() for row in batch.digests] == [digest(pixels[index]) for index in good]
    assert batch.skipped == [(index, f"{index} is torn") for index in range(3, 150, 7)]


def slow_candidates(first: np.ndarray, second: np.ndarray) -> list[tuple[int, int]]:
    bits = [np.unpackbits(part[:, EXACT:], axis=1).astype(int) for part in (first, second)]
    found = [
        (int(np.abs(one - other).sum()), a, b)
        for a, one in enumerate(bits[0])
        for b, other in enumerate(bits[1])
        if 8 <= one.sum() <= 56
    ]
    return [
        (a, b)
        for apart, a, b in sorted(found)
        if apart <= 8 and first[a, :EXACT].tobytes() != second[b, :EXACT].tobytes()
    ]


@pytest.mark.parametrize("numpy_2", [True, False])
def test_candidates_are_all_pairs_of_like_looks(monkeypatch: pytest.MonkeyPatch, numpy_2: bool) -> None:
    if not numpy_2:
        monkeypatch.delattr(np, "bitwise_count", raising=False)
    rng = np.random.default_rng(2)
    first, second = (rng.integers(0, 256, (count, DIGEST), dtype=np.uint8) for count in (150, 90))
    second[:60] = first[:60]
    for row in range(60):  # from the same look to one that is twelve bits apart; the first twenty with the same pixels
        for bit in rng.permutation(64)[: row % 13]:
            second[row, EXACT + bit // 8] ^= np.uint8(1 << bit % 8)
    second[20:60, 0] ^= 1
    first[30, EXACT:] = second[30, EXACT:] = 0  # which is a plain picture
    expected = slow_candidates(first, second)
    assert 15 < len(expected) < 40
    assert candidates(first, second) == expected
    assert common(first, second) == 20


def test_calibrate_tells_of_near_copies(net_spec: str, weights: Path, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data", 15)
    (tmp_path / "train").mkdir()
    for place, file in enumerate(sorted(data.rglob("*.png"))[:30]):
        harmed(Image.open(file), place).save(tmp_path / "train" / f"{place}.png")
    made = idness(
        "calibrate", net_spec, "--weights", weights, "--data", data, "--train", tmp_path / "train", "--method", "knn(k=1)",
        "-o", tmp_path / "guard", "--no-thumbnails",
    )  # fmt: skip
    assert made.returncode == 0
    assert "are nearly the same in train (train)" in made.stderr

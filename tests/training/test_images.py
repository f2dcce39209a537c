from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from idness.core.errors import DataError
from idness.training import TrainingSet, cifar6, image_folder
from idness.training.images import crop_flip


def folder(root: Path, size: tuple[int, int] = (8, 8)) -> Path:
    for label, name in enumerate(("ant", "bee")):
        (root / name).mkdir(parents=True)
        for i in range(3):
            Image.new("RGB", size, (label * 100, i * 10, 5)).save(root / name / f"{i}.png")
    return root


def test_folder(tmp_path: Path) -> None:
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    data = image_folder(folder(tmp_path))
    assert data.classes == ("ant", "bee")
    assert data.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.images.shape == (6, 8, 8, 3)
    assert data.images[4, 0, 0].tolist() == [100, 10, 5]


def test_sizes_are_brought_to_one_only_when_asked(tmp_path: Path) -> None:
    Image.new("RGB", (20, 10)).save(folder(tmp_path) / "ant" / "wide.png")
    with pytest.raises(DataError, match=r"2 sizes \(8 x 8, 20 x 10\).*give size="):
        image_folder(tmp_path)
    assert image_folder(tmp_path, size=16).images.shape == (7, 16, 16, 3)


def test_everything_broken_is_told_at_once(tmp_path: Path) -> None:
    root = folder(tmp_path)
    (root / "ant" / "cut.png").write_bytes((root / "ant" / "0.png").read_bytes()[:40])
    (root / "bee" / "page.jpg").write_text("<html>")
    (root / "cow").mkdir()
    with pytest.raises(DataError) as caught:
        image_folder(root)
    assert all(word in str(caught.value) for word in ("ant/cut.png", "bee/page.jpg", "'cow' has no image"))
    assert "\n" not in str(caught.value)


def test_no_folder_and_no_classes(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        image_folder(tmp_path / "nowhere")
    with pytest.raises(DataError, match="at least 2 subfolders"):
        image_folder(tmp_path)


@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        (torch.zeros(2, 4, 4, 3), torch.tensor([0, 1]), "uint8"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.tensor([0, 1]), "uint8"),
        (torch.zeros(2, 4, 4, 3, dtype=torch.uint8), torch.tensor([0]), "one integer per image"),
        (torch.zeros(2, 4, 4, 3, dtype=torch.uint8), torch.tensor([0, 2]), "labels must be in 0 to 1"),
        (torch.zeros(0, 4, 4, 3, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64), "at least one"),
    ],
)
def test_wrong_arrays_are_told(images: torch.Tensor, labels: torch.Tensor, words: str) -> None:
    with pytest.raises(DataError, match=words):
        TrainingSet(images, labels, ("a", "b"))


def test_labels_may_be_of_any_integer_type() -> None:
    made = TrainingSet.from_arrays(np.zeros((3, 4, 4, 3), np.uint8), np.array([0, 2, 1], np.uint8))
    assert made.classes == ("0", "1", "2")
    assert made.labels.tolist() == [0, 2, 1]


def test_cifar6_splits_follow_the_rule(tmp_path: Path) -> None:
    labels = np.tile(np.arange(10), 100)
    images = np.zeros((1000, 32, 32, 3), np.uint8)
    images[:, 0, 0, 0], images[:, 0, 0, 1] = np.arange(1000) // 10, labels
    path = tmp_path / "cifar10.npz"
    np.savez(path, train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    train, val, test = (cifar6(path, split) for split in ("train", "val", "test"))
    assert (len(train), len(val), len(test)) == (100, 500, 600)
    assert train.classes == ("airplane", "automobile", "bird", "deer", "dog", "truck")
    original = torch.tensor([0, 1, 2, 4, 5, 9])
    for data in (train, val, test):
        assert torch.equal(data.images[:, 0, 0, 1].long(), original[data.labels])
    assert val.labels.bincount().tolist() == [84, 84, 83, 83, 83, 83]
    assert train.images[train.labels == 0][:, 0, 0, 0].tolist() == list(range(16))
    with pytest.raises(DataError, match="build_cifar6"):
        cifar6(tmp_path / "none.npz")


def test_crop_flip_moves_whole_images() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.arange(2 * 12 * 12 * 3, dtype=torch.int64).reshape(2, 12, 12, 3).remainder(251).to(torch.uint8)
    seen = crop_flip(images.repeat(60, 1, 1, 1), generator, pad=2)
    assert seen.shape == (120, 12, 12, 3)
    padded = np.pad(images.numpy(), ((0, 0), (2, 2), (2, 2), (0, 0)), mode="reflect")
    views = {
        (i, flip, top, left): padded[i, top : top + 12, left : left + 12][:, :: -1 if flip else 1].tobytes()
        for i in range(2)
        for flip in (0, 1)
        for top in range(5)
        for left in range(5)
    }
    found = [
        [key for key, view in views.items() if key[0] == n % 2 and view == image.numpy().tobytes()]
        for n, image in enumerate(seen)
    ]
    assert all(found)
    assert len({key[1] for keys in found for key in keys}) == 2
    assert len({key[2:] for keys in found for key in keys}) == 25
    assert torch.equal(
        crop_flip(images, torch.Generator().manual_seed(3)), crop_flip(images, torch.Generator().manual_seed(3))
    )

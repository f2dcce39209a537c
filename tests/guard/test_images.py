"""Images and networks as a notebook has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import colour_world as world
import numpy as np
import pytest
import torch
from colour_world import HOW
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from idness.core.errors import DataError
from idness.guard import Guard

NUMBERS = {"resize": [16, 16], "mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]}
LABELS = [place % 4 for place in range(80)]
PICTURES = [world.known(list(world.COLOURS)[label], 900 + place, side=16) for place, label in enumerate(LABELS)]


class Pairs:
    """A data set of images and labels, as torchvision's are."""

    def __init__(self, change: Any = None) -> None:
        self.change = change

    def __len__(self) -> int:
        return len(PICTURES)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return (PICTURES[index] if self.change is None else self.change(PICTURES[index])), LABELS[index]


def test_for_images_takes_a_module_and_images_of_any_kind(trained: nn.Module, tmp_path: Path) -> None:
    paths = [tmp_path / f"{place}.png" for place in range(len(PICTURES))]
    for path, picture in zip(paths, PICTURES, strict=True):
        picture.save(path)
    tensors = TensorDataset(torch.stack([HOW(picture) for picture in PICTURES]), torch.tensor(LABELS))
    arrays = [np.asarray(picture) for picture in PICTURES]
    kinds: dict[str, Any] = {
        "paths": paths,
        "PIL images": PICTURES,
        "arrays": arrays,
        "batch": np.stack(arrays),
        "pairs": Pairs(),
        "tensors in [0, 1]": Pairs(lambda picture: torch.from_numpy(np.array(picture)).permute(2, 0, 1) / 255),
        "records": [{"image": picture, "label": label} for picture, label in zip(PICTURES, LABELS, strict=True)],
        "normalised tensors": tensors,
        "loader": DataLoader(tensors, batch_size=32),
        "loader without labels": DataLoader(TensorDataset(tensors.tensors[0]), batch_size=32),
    }
    found = {}
    for name, data in kinds.items():
        notes: list[str] = []
        guard = Guard.for_images(trained, data, method="ebo", preprocessing=NUMBERS, notes=notes)
        found[name] = float(guard.threshold())
        assert guard.preprocessing == HOW
        assert len(guard.calibration or ()) == 80
        if name in ("pairs", "records", "normalised tensors", "loader"):
            assert any("accuracy" in note for note in notes), name
    assert list(found.values()) == pytest.approx([found["paths"]] * len(kinds), rel=1e-5), found
    guard = Guard.for_images(
        trained, PICTURES, preprocessing=NUMBERS, ood=[world.ood_picture(seed) for seed in range(40)], notes=[]
    )
    assert guard.detection is not None
    assert Guard.load(guard.save(tmp_path / "guard"), trained).spec is None


def test_judge_takes_lists_arrays_and_tensors_and_names_the_rows(guard: Guard, tmp_path: Path) -> None:
    picture, path = world.known("blue", 77), tmp_path / "blue.png"
    picture.save(path)
    pixels = np.asarray(picture)
    tensor = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
    verdict = guard.judge(path, str(path), path.read_bytes(), picture, pixels, tensor, tensor / 255)
    assert verdict.score.unique().numel() == 1
    assert verdict.names == [str(path), str(path), *map(str, range(2, 7))]
    for several in ([path, picture], np.stack([pixels, pixels]), torch.stack([tensor, tensor])):
        assert guard.judge(several).score.tolist() == verdict.score[:2].tolist()
    layered = picture.convert("RGBA")
    layered.putalpha(90)
    layered.save(path)
    assert guard.judge(path).score == guard.judge(layered).score


def test_an_image_with_a_problem_does_not_fail_the_others(guard: Guard, tmp_path: Path) -> None:
    good, broken = tmp_path / "good.png", tmp_path / "broken.png"
    world.known("blue", 77).save(good)
    broken.write_bytes(b"no image")
    verdict = guard.judge(good, broken, tmp_path / "absent.png", np.zeros((4, 4, 4, 4, 4)), 7, good)
    assert list(verdict.errors) == [1, 2, 3, 4]
    assert verdict.is_ood[1:5].all()
    assert verdict.score[[0, 5]].unique().numel() == 1
    records = verdict.records()
    assert records[0]["image"] == str(good)
    assert records[0]["class"] == "blue"
    assert "must be one of JPEG" in records[1]["error"]
    assert "image 4 must be a path, bytes, a PIL image or an array" in records[4]["error"]
    assert "cannot be read" in verdict[1]._repr_html_()
    assert guard.judge(broken).is_ood.tolist() == [True]
    folder = guard.judge(tmp_path)
    assert folder.names is not None
    assert [Path(name).name for name in folder.names] == ["broken.png", "good.png"]
    assert repr(folder[0]) == "Verdict(1 image, 1 out-of-distribution, 1 of which cannot be read)"


def test_images_that_cannot_be_used_are_refused_in_one_line(trained: nn.Module) -> None:
    with pytest.raises(
        DataError, match="data= must be a folder, a list of images or a data set with a length, got generator"
    ):
        Guard.for_images(trained, (picture for picture in PICTURES), method="ebo", preprocessing=NUMBERS)
    normalised = TensorDataset(torch.stack([HOW(picture) for picture in PICTURES]) * 9, torch.tensor(LABELS))
    with pytest.raises(DataError, match="none of its images can be read.*pass preprocessing= with its mean and std"):
        Guard.for_images(trained, normalised, method="ebo", preprocessing=NUMBERS)
    with pytest.raises(DataError, match="contains no images"):
        Guard.for_images(trained, [], method="ebo", preprocessing=NUMBERS)

"""`idness extract` in one process: a store that a benchmark takes for its own cache."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from idness.benchmark.protocol import Settings
from idness.benchmark.runner import run
from tests.cli.running import idness
from tests.pictures import world


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return world(tmp_path)


def words(place: Path, *more: object) -> tuple[object, ...]:
    return (f"{place.parent}/net.py:make", *more, "--weights", place.parent / "weights.safetensors")


def benched(place: Path, store: Path, **options: object) -> dict[str, float]:
    model = f"{place.parent}/net.py:make"
    settings = Settings(weights=place.parent / "weights.safetensors", cache=store, methods=["ebo"], **options)  # type: ignore[arg-type]
    return run(place, model, settings).time


def test_a_benchmark_takes_the_store_for_its_own_cache(place: Path, tmp_path: Path) -> None:
    done = idness("extract", *words(place, place, "-o", tmp_path / "store"))
    assert done.returncode == 0, done.stderr
    assert "id_test: " in done.stdout
    assert f"wrote {tmp_path / 'store'}" in done.stderr
    time = benched(place, tmp_path / "store")
    assert time["images"] == 0
    assert time["cached"] > 0


def test_single_sets_are_those_of_the_benchmark_too(place: Path, tmp_path: Path) -> None:
    sets = [place.parent / f"{name}.npz" for name in ("train", "val", "test", "uval", "near", "far")]
    classes, how = (
        ("--classes", "red,green,blue,yellow"),
        ("--size", 16, "--mean", "0.5,0.5,0.5", "--std", "0.25,0.25,0.25"),
    )
    # The benchmark's preprocessing resizes nothing.
    text = place.read_text().replace("[preprocessing]", "[preprocessing]\nresize = [16, 16]")
    place.write_text(text)
    done = idness("extract", *words(place, *sets, "-o", tmp_path / "store"), *classes, *how, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [entry["name"] for entry in found] == [path.name for path in sets]
    assert all(entry["ran"] == entry["images"] and entry["unread"] == 0 for entry in found)
    assert benched(place, tmp_path / "store")["images"] == 0


def test_what_is_there_is_refused_or_gone_on_with(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    first = idness("extract", *words(place, place.parent / "test.npz", "-o", out))
    assert first.returncode == 0, first.stderr
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")}
    refused = idness("extract", *words(place, place.parent / "test.npz", "-o", out))
    assert (refused.returncode, refused.stderr) == (
        2, f"idness: {out} exists; pass --resume to continue it, or choose another folder\n",
    )  # fmt: skip
    again = idness("extract", *words(place, place.parent / "test.npz", "-o", out, "--resume"))
    assert ", 0 run, " in again.stdout
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")} == before


def test_images_that_cannot_be_read_are_counted(place: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name in ("a", "b", "c"):
        Image.fromarray(np.full((16, 16, 3), 90, np.uint8)).save(folder / f"{name}.png")
    (folder / "b.png").write_bytes(b"junk")
    done = idness("extract", *words(place, folder, "-o", tmp_path / "store"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        "pictures: 3 images, 3 run, 0 found in the store, 1 skipped; first: b.png: b.png: must be"
    )


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["nosuch", "-o", "store"], "SETS nosuch does not exist"),
        (["a-file/x", "-o", "a-file/store"], "a-file/store: a-file is not a folder"),
        (["cifar6", "-o", "store", "--size", "32"], "--size, --mean and --std"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_written(more: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "a-file").touch()
    done = idness("extract", "cifar6:base", *more, cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["a-file"]

from __future__ import annotations

import io
import json
import os
import tracemalloc
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from idness.core.errors import DataError, IdnessError, StoreError
from idness.core.types import Head
from idness.data import (
    ActivationsFile,
    ArraySet,
    ImageSet,
    Preprocessing,
    activations,
    folder_set,
    open_set,
    read_batches,
    sets,
)
from idness.data.activations import read_head
from idness.data.npz import NpzSet
from idness.data.torchvision_sets import _wrapped
from idness.guard.judge import find_images
from idness.training import image_folder


def pixels(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 6, 6, 3), dtype=np.uint8)


def write_images(folder: Path, count: int, seed: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, array in enumerate(pixels(count, seed)):
        Image.fromarray(array).save(folder / f"{number:03}.png")


def images_of(data: ImageSet) -> np.ndarray:
    [batch] = read_batches(data, Preprocessing(), [(0, len(data))])
    assert not batch.skipped
    return batch.pixels


def opened(spec: object, root: Path) -> ImageSet:
    found = open_set(spec, root)  # type: ignore[arg-type]
    assert isinstance(found, ImageSet)
    return found


def test_folder_by_class_ignores_what_is_hidden_dangling_or_no_image(tmp_path: Path) -> None:
    write_images(tmp_path / "cat", 2)
    write_images(tmp_path / "dog" / "deep", 3, seed=1)
    write_images(tmp_path / ".hidden", 1)
    (tmp_path / "empty").mkdir()
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    (tmp_path / "cat" / ".secret.png").write_bytes(b"x")
    (tmp_path / "cat" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    (tmp_path / "cat" / "loop").symlink_to(tmp_path / "cat")
    (tmp_path / "cat" / "itself.png").symlink_to(tmp_path / "cat" / "itself.png")
    data = folder_set(tmp_path)
    assert data.classes == ("cat", "dog")
    assert data.labels is not None
    assert data.labels.tolist() == [0, 0, 1, 1, 1]
    assert [data.item(place) for place in (0, 2)] == ["cat/000.png", "dog/deep/000.png"]
    assert np.array_equal(images_of(data)[:2], pixels(2))


def test_folder_classes_follow_the_given_order(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_images(tmp_path / name, 1)
    data = folder_set(tmp_path, ["b", "a", "c"])
    assert data.labels is not None
    assert data.item(int(np.argmin(data.labels))) == "b/000.png"
    with pytest.raises(DataError, match=r"1 of its 2 folders are not classes of the network \(b\); remove them"):
        folder_set(tmp_path, ["a", "c"])


def test_flat_folder_has_no_labels_and_odd_names_work(tmp_path: Path) -> None:
    write_images(tmp_path, 2)
    Image.fromarray(pixels(1)[0]).save(tmp_path / "öäü <b> 'x'.png")
    if os.name == "posix":
        raw = os.fsencode(tmp_path) + b"/\xff\xfe.png"
        Path(os.fsdecode(raw)).write_bytes((tmp_path / "000.png").read_bytes())
    data = folder_set(tmp_path)
    assert data.labels is None
    assert len(data) == (4 if os.name == "posix" else 3)
    json.dumps([data.item(place) for place in range(len(data))]).encode("utf-8")
    assert len(images_of(data)) == len(data)


def test_bad_files_are_listed_with_their_reason(tmp_path: Path) -> None:
    write_images(tmp_path, 3)
    (tmp_path / "001.png").write_bytes(b"")
    (tmp_path / "zz.jpg").write_text("<html>")
    [batch] = read_batches(folder_set(tmp_path), Preprocessing(), [(0, 4)])
    assert batch.index.tolist() == [0, 2]
    assert [place for place, _ in batch.skipped] == [1, 3]
    assert "empty" in batch.skipped[0][1]
    assert batch.digests.shape == (2, 24)


def test_images_of_two_sizes_are_told(tmp_path: Path) -> None:
    write_images(tmp_path, 1)
    Image.new("RGB", (9, 5)).save(tmp_path / "z.png")
    with pytest.raises(DataError, match="one size after preprocessing"):
        list(read_batches(folder_set(tmp_path), Preprocessing(), [(0, 2)]))


def test_changed_file_changes_its_stamp_only(tmp_path: Path) -> None:
    write_images(tmp_path, 4)
    before = [folder_set(tmp_path).stamp(place, place + 2) for place in (0, 2)]
    Image.fromarray(pixels(1, seed=9)[0]).save(tmp_path / "003.png")
    os.utime(tmp_path / "003.png", ns=(1, 1))
    after = [folder_set(tmp_path).stamp(place, place + 2) for place in (0, 2)]
    assert before[0] == after[0]
    assert before[1] != after[1]


def test_the_state_of_files_counts_only_if_it_proves_that_they_are_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "x.npz", a=pixels(2), b=pixels(2, seed=1))
    first, second = (NpzSet(tmp_path / "x.npz", name) for name in "ab")
    assert first.state(0, 2) is None  # written just now: another change may get the same time
    monkeypatch.setattr(sets, "SETTLED", -1.0)
    assert len({first.state(0, 2), second.state(0, 2), first.state(0, 1), None}) == 4


@pytest.mark.parametrize("compressed", [True, False])
def test_npz_reads_forwards_backwards_and_by_part(tmp_path: Path, compressed: bool) -> None:
    array = pixels(10)
    save = np.savez_compressed if compressed else np.savez
    save(tmp_path / "x.npz", images=array, labels=np.arange(10) % 3)
    data = opened("x.npz", tmp_path)
    for place in (7, 2, 9, 0, 0):
        assert np.array_equal(np.asarray(data.picture(place)), array[place])
    assert np.array_equal(images_of(data), array)
    part = opened({"path": "x.npz", "rows": [4, 8]}, tmp_path)
    assert np.array_equal(images_of(part), array[4:8])
    assert part.labels is not None
    assert part.labels.tolist() == [1, 2, 0, 1]
    thin = opened({"path": "x.npz", "sample": 4}, tmp_path)
    assert np.array_equal(images_of(thin), array[::3])
    assert data.stamp(4, 8) == part.stamp(0, 4)


def test_npz_of_grey_and_of_channels_first(tmp_path: Path) -> None:
    np.savez(tmp_path / "grey.npz", images=pixels(2)[..., 0])
    np.savez(tmp_path / "first.npz", images=pixels(2).transpose(0, 3, 1, 2))
    assert np.array_equal(images_of(opened("grey.npz", tmp_path))[..., 1], pixels(2)[..., 0])
    assert np.array_equal(images_of(opened("first.npz", tmp_path)), pixels(2))


def test_npz_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    np.savez(tmp_path / "float.npz", images=pixels(2).astype(np.float32))
    np.savez(tmp_path / "names.npz", foo=pixels(2), bar=pixels(2))
    np.savez(tmp_path / "short.npz", images=pixels(2), labels=np.arange(3))
    (tmp_path / "bad.npz").write_bytes(b"not a zip")
    np.savez(tmp_path / "shapes.npz", images=pixels(2), labels=np.zeros((2, 2)))
    np.savez_compressed(tmp_path / "large.npz", images=np.zeros((1, 8001, 8000), np.uint8))
    np.savez(tmp_path / "object.npz", images=np.array([{"a": 1}], dtype=object))
    for name, message in (
        ("float", "uint8"),
        ("names", "which array"),
        ("short", "one label per image"),
        ("bad", "no .npz"),
        ("object", "holds Python objects, which could run code"),
        ("shapes", "labels must be a list of whole numbers"),
        ("large", "at most 64,000,000 pixels"),
    ):
        with pytest.raises(DataError, match=message):
            NpzSet(tmp_path / f"{name}.npz")


@pytest.mark.parametrize("kind", ["labels", "images", "head"])
def test_an_array_that_unpacks_to_gigabytes_is_refused_by_its_header(tmp_path: Path, kind: str) -> None:
    """Archives of 1 MB whose members claim, and would unpack to, more than the process may have."""
    bomb = {"labels": "labels", "images": "images", "head": "weight"}[kind]
    others = {"labels": {"images": pixels(2)}, "images": {}, "head": {"bias": np.zeros(3)}}[kind]
    np.savez(tmp_path / "x.npz", **others)
    shape = (2, 40_000, 12_500) if kind == "images" else (1_000_000_000,)
    header = {"descr": "|u1", "fortran_order": False, "shape": shape}
    with (
        zipfile.ZipFile(tmp_path / "x.npz", "a", zipfile.ZIP_DEFLATED) as archive,
        archive.open(f"{bomb}.npy", "w", force_zip64=True) as member,
    ):
        np.lib.format.write_array_header_1_0(member, header)
        for _ in range(1000):
            member.write(bytes(1_000_000))
    tracemalloc.start()
    with pytest.raises(IdnessError, match=r"one label per image|at most 64,000,000 pixels|must hold weight \(C, D\)"):
        read_head(tmp_path / "x.npz") if kind == "head" else NpzSet(tmp_path / "x.npz")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 20_000_000


def test_damaged_npz_is_told(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, images=np.concatenate([pixels(200)] * 100))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(DataError, match="is damaged at image 199"):
        NpzSet(path).stamp(0, 20_000)


def test_image_list_as_openood_writes_it(tmp_path: Path) -> None:
    write_images(tmp_path / "images" / "a", 3)
    (tmp_path / "list.txt").write_text("a/000.png 4\na/002.png 1\n")
    data = opened({"path": "list.txt", "root": "images"}, tmp_path)
    assert data.labels is not None
    assert data.labels.tolist() == [4, 1]
    assert np.array_equal(images_of(data), pixels(3)[[0, 2]])
    (tmp_path / "ood.txt").write_text("a/000.png -1\n")
    assert opened({"path": "ood.txt", "root": "images"}, tmp_path).labels is None


@pytest.mark.parametrize("line", ["../secret.png 0", "/etc/passwd 0"])
def test_image_list_does_not_leave_its_root(tmp_path: Path, line: str) -> None:
    (tmp_path / "list.txt").write_text(line)
    with pytest.raises(DataError, match="below the root"):
        open_set("list.txt", tmp_path)


def test_image_list_of_files_that_are_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("a/000.png 0\n")
    with pytest.raises(DataError, match="set root"):
        open_set("list.txt", tmp_path)


def test_parquet_and_arrow(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    def encoded(array: np.ndarray) -> bytes:
        buffer = io.BytesIO()
        Image.fromarray(array).save(buffer, "PNG")
        return buffer.getvalue()

    rows = [{"bytes": encoded(array), "path": None} for array in pixels(5)]
    info = {"info": {"features": {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["x", "y"]}}}}
    table = pa.table({"image": rows, "label": [0, 1, 0, 1, 1]}).replace_schema_metadata(
        {"huggingface": json.dumps(info)}
    )
    (tmp_path / "hub" / "data").mkdir(parents=True)
    pq.write_table(table, tmp_path / "hub" / "data" / "test-00000.parquet", row_group_size=2)
    pq.write_table(table.slice(0, 2), tmp_path / "hub" / "data" / "train-00000.parquet")
    data = opened({"path": "hub", "split": "test"}, tmp_path)
    assert data.classes == ("x", "y")
    assert data.labels is not None
    assert data.labels.tolist() == [0, 1, 0, 1, 1]
    assert np.array_equal(images_of(data), pixels(5))
    with pytest.raises(DataError, match="splits test, train"):
        open_set("hub", tmp_path)
    (tmp_path / "saved").mkdir()
    with (
        pa.OSFile(str(tmp_path / "saved" / "data-00000.arrow"), "wb") as file,
        pa.ipc.new_stream(file, table.schema) as writer,
    ):
        writer.write_table(table)
    assert np.array_equal(images_of(opened("saved", tmp_path)), pixels(5))


def test_torchvision_set_by_name(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    write_images(tmp_path / "a", 2)
    write_images(tmp_path / "b", 1)
    data = opened("torchvision:ImageFolder", tmp_path)
    assert data.labels is not None
    assert data.labels.tolist() == [0, 0, 1]
    assert data.item(2) == "b/000.png"
    with pytest.raises(DataError, match="set download = true"):
        open_set({"dataset": "SVHN", "split": "test"}, tmp_path)
    with pytest.raises(IdnessError, match="did you mean 'svhn'"):
        open_set("torchvision:SVHM", tmp_path)


def test_torchvision_sets_of_arrays_and_of_single_images() -> None:
    class InArray:
        data, targets, classes = pixels(3), [2, 0, 1], ["a", "b", "c"]

        def __len__(self) -> int:
            return 3

    class ByPlace:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, place: int) -> tuple[Image.Image, int]:
            return Image.fromarray(pixels(3)[place]), 0

    first, second = _wrapped(InArray(), "a"), _wrapped(ByPlace(), "b")
    assert isinstance(first, ArraySet)
    assert first.labels is not None
    assert first.labels.tolist() == [2, 0, 1]
    for data in (first, second):
        assert np.array_equal(images_of(data), pixels(3))


@pytest.mark.parametrize("name", ["a.safetensors", "a.npz"])
def test_activations_file(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    features, logits, labels = torch.rand(7, 4), torch.rand(7, 3), torch.arange(7) % 3
    save_arrays(tmp_path / name, features=features, logits=logits, labels=labels)
    data = open_set(name, tmp_path)
    assert isinstance(data, ActivationsFile)
    assert (len(data), data.features, data.classes, data.label_range()) == (7, 4, 3, (0, 2))
    monkeypatch.setattr(activations, "SHARD", 3)
    for _ in range(2):
        parts = list(data.shards())
        assert [len(part) for part in parts] == [3, 3, 1]
        for field, wanted in (("features", features), ("logits", logits), ("labels", labels)):
            assert torch.equal(torch.cat([getattr(part, field) for part in parts]), wanted)


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_logits_are_made_by_the_head_where_they_are_missing(tmp_path: Path, suffix: str) -> None:
    features, head = torch.rand(7, 4, dtype=torch.float64), Head(torch.rand(3, 4), torch.rand(3))
    save_arrays(tmp_path / f"a{suffix}", features=features)
    data = open_set(f"a{suffix}", tmp_path)
    assert isinstance(data, ActivationsFile)
    assert data.classes is None
    assert data.label_range() is None
    with pytest.raises(DataError, match="has no logits, and there is no head to compute them"):
        data.load()
    data.head = head
    assert torch.equal(data.load().logits, head(features.float()))


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"logits": (7, 3)}, "features"),
        ({"features": (7,)}, r"features must be one row per image, got shape \(7,\)"),
        (
            {"features": (7, 4), "logits": (6, 3)},
            r"logits must be one row per image, got shape \(6, 3\) beside \(7, 4\)",
        ),
        ({"features": (7, 4), "labels": (7, 1)}, r"labels must be one number per image"),
    ],
)
def test_what_are_no_activations_is_told(tmp_path: Path, suffix: str, arrays: dict[str, Any], message: str) -> None:
    save_arrays(tmp_path / f"a{suffix}", **{name: torch.zeros(shape) for name, shape in arrays.items()})
    with pytest.raises(DataError, match=message):
        open_set({"path": f"a{suffix}", "kind": "activations"}, tmp_path)


def test_damaged_files_of_activations_are_told(tmp_path: Path) -> None:
    for name in ("c.safetensors", "c.npz"):
        (tmp_path / name).write_bytes(b"junk")
        with pytest.raises(DataError, match="is not a safetensors or .npz file of activations"):
            open_set({"path": name, "kind": "activations"}, tmp_path)
    np.savez(tmp_path / "d.npz", features=np.array([{}, {}], dtype=object))
    with pytest.raises(DataError, match="holds Python objects, which could run code"):
        open_set("d.npz", tmp_path)
    np.savez_compressed(tmp_path / "e.npz", features=np.random.default_rng(0).random((50, 40)))
    content = bytearray((tmp_path / "e.npz").read_bytes())
    content[len(content) // 2] ^= 255
    (tmp_path / "e.npz").write_bytes(content)
    data = open_set("e.npz", tmp_path)
    assert isinstance(data, ActivationsFile)
    data.head = Head(torch.rand(3, 40))
    with pytest.raises(DataError, match=r"e\.npz: is damaged"):
        data.load()


def test_an_archive_with_features_can_hold_images_too(tmp_path: Path) -> None:
    np.savez(tmp_path / "both.npz", features=np.zeros((3, 4)), images=pixels(3))
    assert isinstance(open_set("both.npz", tmp_path), ActivationsFile)
    assert isinstance(open_set({"path": "both.npz", "images": "images"}, tmp_path), NpzSet)


def save_arrays(path: Path, **arrays: torch.Tensor) -> None:
    if path.suffix == ".npz":
        np.savez_compressed(path, **{name: value.numpy() for name, value in arrays.items()})
    else:
        save_file(arrays, path)


def test_embedded_set() -> None:
    data = open_set("embedded:id_val")
    assert isinstance(data, ImageSet)
    assert len(data) == 500
    assert data.classes == ("airplane", "automobile", "bird", "deer", "dog", "truck")


def test_first_place_that_exists_is_taken(tmp_path: Path) -> None:
    write_images(tmp_path / "second", 1)
    assert len(opened({"path": ["first", "second", "torchvision:SVHN"]}, tmp_path)) == 1
    with pytest.raises(DataError, match="first or third does not exist"):
        open_set({"path": ["first", "third"]}, tmp_path)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"pth": "x"}, "got 'pth'"),
        ({}, "needs a path"),
        ("x.doc", "folder or end in"),
        ({"path": "x.npz", "rows": [3, 99]}, "within 5 images"),
    ],
)
def test_wrong_specifications(tmp_path: Path, spec: object, message: str) -> None:
    (tmp_path / "x.doc").write_text("")
    np.savez(tmp_path / "x.npz", images=pixels(5))
    with pytest.raises(DataError, match=message):
        open_set(spec, tmp_path)  # type: ignore[arg-type]


def test_the_same_picture_has_the_same_digest_in_every_format(tmp_path: Path) -> None:
    write_images(tmp_path / "png", 2)
    np.savez(tmp_path / "x.npz", images=pixels(2))
    found = [next(read_batches(opened(name, tmp_path), Preprocessing(), [(0, 2)])).digests for name in ("png", "x.npz")]
    assert np.array_equal(*found)


def test_a_folder_that_cannot_be_read_is_told_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path / "a", 3)
    write_images(tmp_path / "b" / "locked", 3)
    seen = os.scandir

    def scandir(folder: str) -> Any:  # whoever runs the tests may be allowed everything
        if Path(folder).name == "locked":
            raise PermissionError(13, "Permission denied")
        return seen(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    for read in (folder_set, image_folder, lambda folder: list(find_images([str(folder)]))):
        with pytest.raises(DataError, match=r"locked: cannot be read \(Permission denied\)"):
            read(tmp_path)


def test_a_maze_of_links_is_walked_once(tmp_path: Path) -> None:
    """Each of 40 folders leads to the next by three ways: 3 to the power of 40 paths."""
    (tmp_path / "a").mkdir()
    write_images(tmp_path / "f0", 1)
    for number in range(1, 40):
        (tmp_path / f"f{number}").mkdir()
        for link in "xyz":
            (tmp_path / f"f{number}" / link).symlink_to(tmp_path / f"f{number - 1}")
    (tmp_path / "a" / "in").symlink_to(tmp_path / "f39")
    assert len(list(find_images([str(tmp_path / "a")]))) == len(folder_set(tmp_path / "a")) == 1


def test_a_pipe_that_is_called_an_image_is_no_image(tmp_path: Path) -> None:
    write_images(tmp_path, 2)
    os.mkfifo(tmp_path / "endless.png")
    assert len(folder_set(tmp_path)) == 2
    assert len(list(find_images([str(tmp_path)]))) == 2


def test_torchvision_unpickles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="reads pickled files, which could run code"):
        open_set({"dataset": "lsun", "options": {"classes": ["x"]}}, tmp_path)
    with pytest.raises(IdnessError, match="unknown torchvision data set 'Kinetics'"):
        open_set("torchvision:Kinetics", tmp_path)


@pytest.mark.fault("a damaged Parquet file: cut, flipped bytes, not one at all", does="one line that names the file")
def test_damaged_parquet_is_told(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    Image.new("RGB", (4, 4)).save(buffer, "PNG")
    rng = np.random.default_rng(0)
    table = pa.table({"image": [buffer.getvalue() + rng.bytes(200) for _ in range(40)], "label": list(range(40))})
    pq.write_table(table, tmp_path / "whole.parquet", row_group_size=10)
    whole = (tmp_path / "whole.parquet").read_bytes()
    file = tmp_path / "harmed.parquet"
    for place in (0, 5, 50, 300, len(whole) // 2, len(whole) - 400, len(whole) - 40, len(whole) - 6):
        flipped = bytearray(whole)
        flipped[place : place + 4] = b"\xff\x00\xff\x7f"
        for content in (bytes(flipped), whole[:place]):
            file.write_bytes(content)
            try:
                images = open_set(str(file))
                for index in range(len(images)):
                    with suppress(DataError):
                        images.picture(index)
            except DataError as error:
                said = str(error)
                assert "harmed.parquet" in said
                assert "\n" not in said


SAMPLES = Path(__file__).parents[1] / "samples" / "activations-v1"


@pytest.mark.parametrize(("name", "count"), [("known", 24), ("ood", 12)])
def test_files_that_version_0_1_took_are_read(name: str, count: int) -> None:
    head, _ = read_head(SAMPLES / "head.safetensors")
    acts = ActivationsFile(SAMPLES / f"{name}.safetensors").load()
    assert acts.features.shape == (count, 32)
    assert torch.allclose(head(acts.features), acts.logits, atol=1e-4)
    assert (acts.labels is not None) == (name == "known")


def test_what_is_no_head_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="missing or no safetensors"):
        read_head(tmp_path / "head.safetensors")
    with pytest.raises(StoreError, match="must hold weight"):
        read_head(SAMPLES / "known.safetensors")

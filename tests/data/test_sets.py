from __future__ import annotations

import io
import json
import os
import re
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from idness.core.errors import DataError, IdnessError, StoreError
from idness.core.types import Head
from idness.data import ArraySet, ImageSet, Preprocessing, activations, folder_set, open_set, read_batches, urls
from idness.data.activations import ActivationsFile, read_head
from idness.data.duplicates import digest
from idness.data.open import object_set, open_images
from idness.data.packed import NpzSet
from idness.data.sets import find_images


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


def test_hidden_dangling_and_other_files_are_ignored(tmp_path: Path) -> None:
    write_images(tmp_path / "cat", 2)
    write_images(tmp_path / "dog" / "deep", 3, seed=1)
    write_images(tmp_path / ".hidden", 1)
    (tmp_path / "empty").mkdir()
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    (tmp_path / "cat" / ".secret.png").write_bytes(b"x")
    (tmp_path / "cat" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    (tmp_path / "cat" / "loop").symlink_to(tmp_path / "cat")
    (tmp_path / "cat" / "itself.png").symlink_to(tmp_path / "cat" / "itself.png")
    os.mkfifo(tmp_path / "cat" / "endless.png")
    data = folder_set(tmp_path)
    assert [str(path) for path in find_images([str(tmp_path)])] == [f"{tmp_path}/{name}" for name in data.items]
    assert data.classes == ("cat", "dog")
    assert np.array_equal(data.labels, [0, 0, 1, 1, 1])
    assert [data.item(place) for place in (0, 2)] == ["cat/000.png", "dog/deep/000.png"]
    assert np.array_equal(images_of(data)[:2], pixels(2))


def test_folder_classes_follow_the_given_order(tmp_path: Path) -> None:
    for name, count in (("a", 2), ("b", 1)):
        write_images(tmp_path / name, count)
    data = folder_set(tmp_path, ["b", "c", "a"])
    assert [data.item(place) for place in range(3)] == ["b/000.png", "a/000.png", "a/001.png"]
    assert data.labels is not None
    assert data.labels.tolist() == [0, 2, 2]
    with pytest.raises(DataError, match=r"folders are not classes of the network \(b\); remove"):
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
    assert [row.tobytes() for row in batch.digests] == [digest(pixels(3)[place]) for place in (0, 2)]
    Image.new("RGB", (9, 5)).save(tmp_path / "001.png")
    with pytest.raises(DataError, match="one size after preprocessing"):
        list(read_batches(folder_set(tmp_path), Preprocessing(), [(0, 2)]))


def test_the_state_of_files_counts_only_if_it_proves_that_they_are_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = [encoded(array) for array in pixels(2)]
    pq.write_table(pa.table({"a": images, "b": images[::-1]}), tmp_path / "x.parquet")
    first, second = (opened({"path": "x.parquet", "images": name}, tmp_path) for name in "ab")
    assert first.state(0, 2) is None  # written just now: another change may get the same time
    monkeypatch.setattr(urls, "SETTLED", -1.0)
    assert len({first.state(0, 2), second.state(0, 2), first.state(0, 1), None}) == 4


def test_npz_whole_and_by_part(tmp_path: Path) -> None:
    array = pixels(10)
    np.savez_compressed(tmp_path / "x.npz", images=array, labels=np.arange(10) % 3)
    data = opened("x.npz", tmp_path)
    assert np.array_equal(images_of(data), array)
    part = opened({"path": "x.npz", "rows": [4, 8]}, tmp_path)
    assert np.array_equal(images_of(part), array[4:8])
    assert np.array_equal(part.labels, [1, 2, 0, 1])
    assert np.array_equal(images_of(opened({"path": "x.npz", "sample": 4}, tmp_path)), array[::3])
    assert data.stamp(4, 8) == part.stamp(0, 4)
    np.savez(tmp_path / "grey.npz", images=array[..., 0])
    np.savez(tmp_path / "first.npz", images=array.transpose(0, 3, 1, 2))
    assert np.array_equal(images_of(opened("grey.npz", tmp_path))[..., 1], array[..., 0])
    assert np.array_equal(images_of(opened("first.npz", tmp_path)), array)


def test_labels_below_zero_are_unknown(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", images=pixels(2), labels=np.array([2, -1]))
    assert opened("x.npz", tmp_path).labels is None  # not the last class
    assert object_set("images", [(pixels(1)[0], 1), (pixels(1)[0], -1)]).labels is None
    assert object_set("images", [(pixels(1)[0], 1), (pixels(1)[0], 0)]).labels is not None


def test_unusable_npz_files_are_reported(tmp_path: Path) -> None:
    np.savez(tmp_path / "float.npz", images=pixels(2).astype(np.float32))
    np.savez(tmp_path / "names.npz", foo=pixels(2), bar=pixels(2))
    np.savez(tmp_path / "short.npz", images=pixels(2), labels=np.arange(3))
    (tmp_path / "bad.npz").write_bytes(b"not a zip")
    np.savez(tmp_path / "shapes.npz", images=pixels(2), labels=np.zeros((2, 2)))
    np.savez_compressed(tmp_path / "large.npz", images=np.zeros((1, 8001, 8000), np.uint8))
    np.savez(tmp_path / "object.npz", images=np.array([{"a": 1}], dtype=object))
    np.savez(tmp_path / "flipped.npz", images=pixels(200))
    content = bytearray((tmp_path / "flipped.npz").read_bytes())
    content[len(content) // 2] ^= 0xFF
    (tmp_path / "flipped.npz").write_bytes(content)
    for name, message in (
        ("float", "uint8"),
        ("names", "which of foo, bar"),
        ("short", "one whole number per image"),
        ("bad", "is not an .npz"),
        ("object", "Object arrays cannot be loaded"),
        ("shapes", "one whole number per image"),
        ("large", "at most 64,000,000 pixels"),
        ("flipped", "flipped.npz: .*Bad CRC-32"),
    ):
        with pytest.raises(DataError, match=message):
            NpzSet(tmp_path / f"{name}.npz")


def test_image_list_as_openood_writes_it(tmp_path: Path) -> None:
    write_images(tmp_path / "images" / "a", 3)
    (tmp_path / "list.txt").write_text("a/000.png 4\na/002.png 1\n")
    data = opened({"path": "list.txt", "root": "images"}, tmp_path)
    assert np.array_equal(data.labels, [4, 1])
    assert np.array_equal(images_of(data), pixels(3)[[0, 2]])
    (tmp_path / "odd.txt").write_bytes("\ufeffa/000.png\t4\r\na/002.png  1\r\n".encode())  # as some editors save it
    assert np.array_equal(opened({"path": "odd.txt", "root": "images"}, tmp_path).labels, [4, 1])
    (tmp_path / "ood.txt").write_text("a/000.png -1\n")
    assert opened({"path": "ood.txt", "root": "images"}, tmp_path).labels is None
    with pytest.raises(DataError, match="set root"):
        open_set("ood.txt", tmp_path)


def test_parquet_with_splits_and_class_names(tmp_path: Path) -> None:
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
    assert np.array_equal(data.labels, [0, 1, 0, 1, 1])
    assert np.array_equal(images_of(data), pixels(5))
    with pytest.raises(DataError, match="tables of the splits test, train"):
        open_set("hub", tmp_path)


def encoded(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "PNG")
    return buffer.getvalue()


def write_tar(path: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def test_tar_files_are_read_by_key(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    for shard, first in (("a.tar", 0), ("b.tar", 3)):
        files = {}
        for place in range(first, first + 3):
            files |= {
                f"x/{place:03}.png": encoded(pixels(6)[place]),
                f"x/{place:03}.json": b'{"label": %d, "id": "n%d"}' % (place, place),
            }
        write_tar(tmp_path / "lake" / shard, files)
    data = open_images([str(tmp_path / "lake")])
    assert np.array_equal(images_of(data), pixels(6))
    assert data.item(4) == f"{tmp_path}/lake/b.tar/x/004.png"
    assert data.values("id", 2, 5) == ["n2", "n3", "n4"]
    assert data.values("__key__", 2, 4) == ["x/002", "x/003"]
    assert opened("lake", tmp_path).labels.tolist() == list(range(6))  # type: ignore[union-attr]
    with pytest.raises(DataError, match="no sample has a field 'idd'; the fields are __key__ and label, id"):
        data.values("idd", 0, 6)
    whole = (tmp_path / "lake" / "a.tar").read_bytes()
    for end in (whole.rindex(b"PNG"), 700, 100):
        (tmp_path / "cut.tar").write_bytes(whole[:end])
        with pytest.raises(DataError, match=r"^cut\.tar: is not a complete, uncompressed tar .*download it again$"):
            opened("cut.tar", tmp_path)


def test_columns_of_tables_are_found_and_kept(tmp_path: Path) -> None:
    table = pa.table({"sku": [f"s{n}" for n in range(5)], "jpeg": [encoded(array) for array in pixels(5)]})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=2)
    data = open_images([str(tmp_path / "t.parquet")])  # the only binary column
    assert np.array_equal(images_of(data), pixels(5))
    assert [data.values("sku", *span) for span in ((1, 4), (3, 5))] == [["s1", "s2", "s3"], ["s3", "s4"]]
    assert data.item(3) == f"{tmp_path}/t.parquet#3"
    with pytest.raises(DataError, match="has no column 'skv'; it has sku, jpeg"):
        data.values("skv", 0, 1)
    pq.write_table(table.append_column("mask", table["jpeg"]), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="which of sku, jpeg, mask contains the images.* pass --image-column"):
        open_images([str(tmp_path / "t.parquet")])
    assert len(open_images([str(tmp_path / "t.parquet")], "jpeg")) == 5


def test_nothing_is_lost_where_a_set_is_ambiguous(tmp_path: Path) -> None:
    write_images(tmp_path / "both", 1)
    write_tar(tmp_path / "both" / "x.tar", {"a.png": encoded(pixels(1)[0])})
    with pytest.raises(DataError, match="both: contains image files, tables and tar files"):
        opened("both", tmp_path)
    two = {f"a.{side}.png": encoded(array) for side, array in zip(("left", "right"), pixels(2), strict=True)}
    write_tar(tmp_path / "two.tar", two)
    with pytest.raises(
        DataError, match=r"sample a has several images \(a\.left\.png, a\.right\.png\); pass --image-column"
    ):
        opened("two.tar", tmp_path)
    assert np.array_equal(images_of(opened({"path": "two.tar", "images": "right.png"}, tmp_path)), pixels(2)[1:])
    (tmp_path / "tables").mkdir()
    for name in ("image", "img"):
        table = pa.table({name: [encoded(array) for array in pixels(2)], "mask": [b"", b""]})
        pq.write_table(table, tmp_path / "tables" / f"{name}.parquet")
    with pytest.raises(DataError, match=r"img\.parquet: must have the other tables' columns \(image, mask\)"):
        opened("tables", tmp_path)


def test_torchvision_set_by_name(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    write_images(tmp_path / "a", 2)
    write_images(tmp_path / "b", 1)
    data = opened("torchvision:ImageFolder", tmp_path)
    assert np.array_equal(data.labels, [0, 0, 1])
    assert data.item(2) == "b/000.png"
    with pytest.raises(DataError, match="set download = true"):
        open_set({"dataset": "SVHN", "split": "test"}, tmp_path)
    for name, message in (("SVHM", "did you mean 'svhn'"), ("LSUN", "unknown torchvision data set 'LSUN'")):
        with pytest.raises(IdnessError, match=message):
            open_set(f"torchvision:{name}", tmp_path)


def test_torchvision_sets_of_arrays_and_of_single_images() -> None:
    class InArray(list):  # type: ignore[type-arg]
        data, targets, transform = pixels(3), [2, 0, 1], None

    by_place = [(Image.fromarray(array), label) for array, label in zip(pixels(3), [2, 0, 1], strict=True)]
    for data in (object_set("a", InArray([None] * 3)), object_set("b", by_place)):
        assert isinstance(data, ArraySet)
        assert np.array_equal(data.labels, [2, 0, 1])
        assert np.array_equal(images_of(data), pixels(3))


@pytest.mark.parametrize("name", ["a.safetensors", "a.npz"])
def test_activations_file(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    features, logits, labels = torch.rand(7, 4, dtype=torch.float64), torch.rand(7, 3), torch.arange(7) % 3
    save_arrays(tmp_path / name, features=features, logits=logits, labels=labels)
    data = open_set(name, tmp_path)
    assert isinstance(data, ActivationsFile)
    assert (len(data), data.features, data.classes, data.label_range()) == (7, 4, 3, (0, 2))
    monkeypatch.setattr(activations, "SHARD", 3)
    for _ in range(2):
        parts = list(data.shards())
        assert [len(part) for part in parts] == [3, 3, 1]
        for field, wanted in (("features", features.float()), ("logits", logits), ("labels", labels)):
            assert torch.equal(torch.cat([getattr(part, field) for part in parts]), wanted)
    save_arrays(tmp_path / name, features=features)
    bare, head = open_set(name, tmp_path), Head(torch.rand(3, 4), torch.rand(3))
    assert isinstance(bare, ActivationsFile)
    assert (bare.classes, bare.label_range()) == (None, None)
    with pytest.raises(DataError, match="has no logits, and there is no head to compute them"):
        bare.load()
    bare.head = head
    assert torch.allclose(bare.load().logits, head(features.float()))


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"logits": (7, 3)}, "features"),
        ({"features": (7,)}, r"features must be one row per image, got shape \(7,\)"),
        ({"features": (7, 4), "logits": (6, 3)}, r"logits must be one row per image, got shape \(6, 3\)"),
        ({"features": (7, 4), "labels": (7, 1)}, r"labels must be one number per image"),
    ],
)
def test_files_without_activations_are_reported(
    tmp_path: Path, suffix: str, arrays: dict[str, Any], message: str
) -> None:
    save_arrays(tmp_path / f"a{suffix}", **{name: torch.zeros(shape) for name, shape in arrays.items()})
    with pytest.raises(DataError, match=message):
        open_set({"path": f"a{suffix}", "kind": "activations"}, tmp_path)


def save_arrays(path: Path, **arrays: torch.Tensor) -> None:
    if path.suffix == ".npz":
        np.savez_compressed(path, **{name: value.numpy() for name, value in arrays.items()})
    else:
        save_file(arrays, path)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"pth": "x"}, "got 'pth'"),
        ({}, "must be a path"),
        ("x.doc", "folder or end in"),
        ({"path": ["first", "third"]}, "first or third does not exist"),
        ({"path": "x.npz", "rows": [3, 99]}, "within 5 images"),
    ],
)
def test_wrong_specifications(tmp_path: Path, spec: object, message: str) -> None:
    (tmp_path / "x.doc").write_text("")
    np.savez(tmp_path / "x.npz", images=pixels(5))
    assert len(opened({"path": ["first", "x.npz", "torchvision:SVHN"]}, tmp_path)) == 5  # the first that exists
    with pytest.raises(DataError, match=message):
        open_set(spec, tmp_path)  # type: ignore[arg-type]


def test_a_folder_that_cannot_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path / "a", 3)
    write_images(tmp_path / "b" / "locked", 3)
    seen = os.scandir

    def scandir(folder: str) -> Any:  # whoever runs the tests may be allowed everything
        if Path(folder).name == "locked":
            raise PermissionError(13, "Permission denied")
        return seen(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    for read in (folder_set, lambda folder: list(find_images([str(folder)]))):
        with pytest.raises(DataError, match=r"locked: cannot be read \(Permission denied\)"):
            read(tmp_path)


@pytest.mark.fault("a damaged Parquet file: truncated, flipped bytes, not Parquet", does="one line that names the file")
def test_damaged_parquet_is_reported(tmp_path: Path) -> None:
    rng, image = np.random.default_rng(0), encoded(pixels(1)[0])
    table = pa.table({"image": [image + rng.bytes(200) for _ in range(40)], "label": list(range(40))})
    pq.write_table(table, tmp_path / "whole.parquet", row_group_size=10)
    whole = (tmp_path / "whole.parquet").read_bytes()
    file = tmp_path / "harmed.parquet"
    for place in (0, 5, 50, 300, len(whole) // 2, len(whole) - 400, len(whole) - 40, len(whole) - 6):
        for content in (whole[:place] + b"\xff\x00\xff\x7f" + whole[place + 4 :], whole[:place]):
            file.write_bytes(content)
            try:
                images = open_set(str(file))
                for index in range(len(images)):
                    with suppress(DataError):
                        images.picture(index)
            except DataError as error:
                assert re.fullmatch(r".*harmed\.parquet.*", str(error))  # noqa: PT017


SAMPLES = Path(__file__).parents[1] / "samples" / "activations-v1"


@pytest.mark.parametrize(("name", "count"), [("known", 24), ("ood", 12)])
def test_files_of_version_0_1_are_read(name: str, count: int) -> None:
    head, _ = read_head(SAMPLES / "head.safetensors")
    acts = ActivationsFile(SAMPLES / f"{name}.safetensors").load()
    assert acts.features.shape == (count, 32)
    assert torch.allclose(head(acts.features), acts.logits, atol=1e-4)
    assert (acts.labels is not None) == (name == "known")
    with pytest.raises(DataError, match="missing or not a safetensors"):
        read_head(SAMPLES / f"{name}.npz")
    with pytest.raises(StoreError, match="must contain weight"):
        read_head(SAMPLES / f"{name}.safetensors")

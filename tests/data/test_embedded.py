from __future__ import annotations

import hashlib
import itertools
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from idness.core.errors import StoreError, UnknownNameError
from idness.data import embedded

REPOSITORY = Path(__file__).parents[2]
ID_CLASSES = ("airplane", "automobile", "bird", "deer", "dog", "truck")
COUNTS = {
    "id_train": 2000,
    "id_val": 500,
    "id_test": 3000,
    "cat": 500,
    "frog": 500,
    "ship": 500,
    "mnist": 1000,
    "fashion-mnist": 1000,
    "quickdraw": 1000,
    "textures": 569,
    "traffic-lights": 1000,
    "horse": 500,
    "groceries": 500,
}
GREY = {"mnist", "fashion-mnist", "quickdraw"}


@pytest.fixture(scope="module")
def loaded() -> dict[str, embedded.EmbeddedSet]:
    return {name: embedded.load(name) for name in embedded.sets()}


@pytest.fixture(scope="module")
def digests(loaded: dict[str, embedded.EmbeddedSet]) -> dict[str, list[str]]:
    return {name: [hashlib.sha256(image.tobytes()).hexdigest() for image in one.images] for name, one in loaded.items()}


def test_every_set_has_its_count_and_shape(loaded: dict[str, embedded.EmbeddedSet]) -> None:
    assert {name: len(one) for name, one in loaded.items()} == COUNTS
    for name, one in loaded.items():
        assert one.name == name
        assert one.images.dtype == np.uint8
        assert one.images.shape == (COUNTS[name], 32, 32, 3)


def test_labels_and_classes_go_together(loaded: dict[str, embedded.EmbeddedSet]) -> None:
    labelled = {name: one for name, one in loaded.items() if one.labels is not None}
    assert {name for name, one in loaded.items() if one.classes} == set(labelled)
    assert {"id_train", "id_val", "id_test"} <= set(labelled) < set(loaded)
    for name, one in labelled.items():
        assert one.labels is not None
        assert one.labels.dtype == np.int64
        assert one.labels.shape == (COUNTS[name],)
        assert set(one.labels.tolist()) == set(range(len(one.classes)))


def test_id_sets_share_six_classes_evenly(loaded: dict[str, embedded.EmbeddedSet]) -> None:
    for name in ("id_train", "id_val", "id_test"):
        labels = loaded[name].labels
        assert loaded[name].classes == ID_CLASSES
        assert labels is not None
        assert np.ptp(np.bincount(labels)) <= 1


def test_roles_cover_every_set_once() -> None:
    roles = ("id_train", "id_val", "id_test", "near", "far", "ood_val")
    by_role = {role: embedded.sets(role) for role in roles}
    assert sorted(itertools.chain.from_iterable(by_role.values())) == sorted(embedded.sets())
    assert by_role["near"] == ["cat", "frog", "ship"]
    assert by_role["ood_val"] == ["horse", "groceries"]
    with pytest.raises(UnknownNameError, match="did you mean 'far'"):
        embedded.sets("fare")


def test_no_validation_source_is_tested() -> None:
    entries = embedded.manifest()["sets"]
    used = {role: {entries[name]["package"] for name in embedded.sets(role)} for role in ("near", "far", "ood_val")}
    assert not used["ood_val"] & used["far"]
    # CIFAR-10 gives both, by different classes and different splits.
    classes = {name: set(entries[name]["classes"]) for name in ("horse", "cat", "frog", "ship", "id_test")}
    assert not classes["horse"] & (classes["cat"] | classes["frog"] | classes["ship"] | classes["id_test"])


def test_no_two_images_are_the_same(digests: dict[str, list[str]]) -> None:
    for name, found in digests.items():
        assert len(set(found)) == len(found), name
    for one, other in itertools.combinations(digests, 2):
        assert not set(digests[one]) & set(digests[other]), (one, other)


def test_every_image_has_the_listed_hash_and_source(digests: dict[str, list[str]]) -> None:
    listed = json.loads((embedded.CIFAR6 / "images.json").read_text())
    for name, found in digests.items():
        assert listed[name]["sha256_16"] == "".join(digest[:16] for digest in found)
        assert len(set(listed[name]["sources"])) == COUNTS[name]


def test_grey_sets_are_grey_and_no_image_is_blank(loaded: dict[str, embedded.EmbeddedSet]) -> None:
    for name, one in loaded.items():
        grey = bool((one.images == one.images[..., :1]).all())
        assert grey == (name in GREY)
        assert embedded.manifest()["sets"][name]["mode"] == ("grey" if grey else "rgb")
        assert one.images.reshape(len(one), -1).std(axis=1).min() > 2, name


def test_the_folder_leaves_room_for_the_networks() -> None:
    names = {path.name for path in embedded.CIFAR6.iterdir()}
    sheets = {file for entry in embedded.manifest()["sets"].values() for file in entry["files"]}
    assert {name for name in names if name.endswith(".webp")} == sheets
    assert {"DATA_CARD.md", "LICENSE-GPL-2.txt", "LICENSE-textures.txt", "LICENSE-quickdraw.txt"} <= names
    data = [path for path in embedded.CIFAR6.iterdir() if path.suffix in {".webp", ".json", ".md", ".txt"}]
    assert sum(path.stat().st_size for path in data) <= 19_000_000


def test_card_states_the_counts() -> None:
    card = (embedded.CIFAR6 / "DATA_CARD.md").read_text()
    for name, count in COUNTS.items():
        role = embedded.manifest()["sets"][name]["role"]
        assert f"| `{name}` | {role} | {count:,} |" in card


def test_reading_everything_is_quick() -> None:
    start = time.process_time()
    for name in embedded.sets():
        embedded.load(name)
    assert time.process_time() - start < 3


def test_reading_needs_no_torch() -> None:
    code = "import sys; from idness import embedded; embedded.load('id_val'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_unknown_set_is_told() -> None:
    with pytest.raises(UnknownNameError, match="unknown embedded set 'mnits'; did you mean 'mnist'"):
        embedded.load("mnits")
    with pytest.raises(UnknownNameError, match="unknown embedded set"):
        embedded.fingerprint("imagenet")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in ("manifest.json", "images.json", "mnist-0.webp", "mnist-1.webp"):
        shutil.copy(embedded.CIFAR6 / name, tmp_path / name)
    return tmp_path


def test_a_copy_reads_the_same(copy: Path) -> None:
    assert np.array_equal(embedded.load("mnist", root=copy).images, embedded.load("mnist").images)
    assert embedded.fingerprint("mnist", root=copy) == embedded.fingerprint("mnist")
    assert embedded.fingerprint("mnist") != embedded.fingerprint("quickdraw")


@pytest.mark.parametrize("name", ["mnist-1.webp", "images.json"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_damage_is_told_in_one_line(copy: Path, name: str, damage: str) -> None:
    content = bytearray((copy / name).read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
        (copy / name).write_bytes(content)
    elif damage == "truncate":
        (copy / name).write_bytes(content[:-100])
    else:
        (copy / name).unlink()
    with pytest.raises(StoreError, match=f"{name}.*install idness again") as caught:
        embedded.load("mnist", root=copy)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 1}', '{"format": 1, "sets": 3}', '{"format": "x"}'])
def test_a_damaged_manifest_is_told(copy: Path, content: str) -> None:
    (copy / "manifest.json").write_text(content)
    with pytest.raises(StoreError, match="is damaged"):
        embedded.sets(root=copy)


@pytest.mark.parametrize("part", ["files", "count", "classes", "role"])
def test_a_manifest_with_a_part_missing_is_told(copy: Path, part: str) -> None:
    manifest = embedded.manifest()
    del manifest["sets"]["mnist"][part]
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(StoreError, match=f"manifest.json: is damaged .*mnist.{part}: Field required"):
        embedded.load("mnist", root=copy)


def test_a_wrong_count_and_a_newer_format_are_told(copy: Path) -> None:
    manifest = embedded.manifest()
    manifest["sets"]["mnist"]["count"] = 999
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(StoreError, match="must have 999 images, got 1000"):
        embedded.load("mnist", root=copy)
    (copy / "manifest.json").write_text(json.dumps(manifest | {"format": 2}))
    with pytest.raises(StoreError, match="newer"):
        embedded.load("mnist", root=copy)


@pytest.mark.shared
def test_id_test_labels_are_the_official_ones(shared_data: Path, loaded: dict[str, embedded.EmbeddedSet]) -> None:
    from safetensors.numpy import load_file

    official = load_file(shared_data / "activations" / "cifar10_test.safetensors")["labels"]
    names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    listed = json.loads((embedded.CIFAR6 / "images.json").read_text())
    for name in ("id_test", "cat", "frog", "ship"):
        one = loaded[name]
        assert one.labels is not None
        stored = [one.classes[label] for label in one.labels]
        assert stored == [names[label] for label in official[listed[name]["sources"]]]

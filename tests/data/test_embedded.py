from __future__ import annotations

import hashlib
import itertools
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idness.core.errors import StoreError, UnknownNameError
from idness.data import embedded

REPOSITORY = Path(__file__).parents[2]
COUNTS = {
    "id_train": 2000, "id_val": 500, "id_test": 3000, "cat": 500, "frog": 500, "ship": 500, "mnist": 1000,
    "fashion-mnist": 1000, "quickdraw": 1000, "textures": 569, "traffic-lights": 1000, "horse": 500, "groceries": 500,
}  # fmt: skip
GREY = {"mnist", "fashion-mnist", "quickdraw"}


@pytest.fixture(scope="module")
def loaded() -> dict[str, embedded.EmbeddedSet]:
    start = time.process_time()
    found = {name: embedded.load(name) for name in embedded.sets()}
    assert time.process_time() - start < 3
    return found


def test_sets_labels_and_classes(loaded: dict[str, embedded.EmbeddedSet]) -> None:
    assert {name: len(one) for name, one in loaded.items()} == COUNTS
    for name, one in loaded.items():
        assert (one.name, one.images.dtype, one.images.shape) == (name, np.uint8, (COUNTS[name], 32, 32, 3))
        assert (one.labels is None) == (not one.classes)
        assert one.labels is None or set(one.labels.tolist()) == set(range(len(one.classes)))
    for name in ("id_train", "id_val", "id_test"):
        assert loaded[name].classes == embedded.classes()
        assert np.ptp(np.bincount(loaded[name].labels)) <= 1  # type: ignore[arg-type]


def test_no_validation_source_is_tested() -> None:
    roles = ("id_train", "id_val", "id_test", "near", "far", "ood_val")
    by_role = {role: embedded.sets(role) for role in roles}
    assert sorted(itertools.chain.from_iterable(by_role.values())) == sorted(embedded.sets())
    entries: Any = embedded.manifest()["sets"]
    used = {role: {entries[name]["package"] for name in by_role[role]} for role in ("far", "ood_val")}
    assert not used["ood_val"] & used["far"]
    # CIFAR-10 gives both near and validation images, by different classes and different splits.
    tested = {name for known in (*by_role["near"], "id_test") for name in entries[known]["classes"]}
    assert not set(entries["horse"]["classes"]) & tested


def test_images_are_distinct_and_as_listed(loaded: dict[str, embedded.EmbeddedSet]) -> None:
    listed = json.loads((embedded.CIFAR6 / "images.json").read_text())
    entries: Any = embedded.manifest()["sets"]
    digests = {name: [hashlib.sha256(image).hexdigest() for image in one.images] for name, one in loaded.items()}
    assert len(set(itertools.chain.from_iterable(digests.values()))) == sum(COUNTS.values())
    for name, one in loaded.items():
        assert listed[name]["sha256_16"] == "".join(digest[:16] for digest in digests[name])
        assert len(set(listed[name]["sources"])) == COUNTS[name]
        grey = bool((one.images == one.images[..., :1]).all())
        assert (grey, entries[name]["mode"]) == (name in GREY, "grey" if grey else "rgb")
        assert one.images.reshape(len(one), -1).std(axis=1).min() > 2, name


def test_reading_needs_no_torch() -> None:
    code = "import sys; from idness import embedded; embedded.load('id_val'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_unknown_names_get_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match="unknown embedded set 'mnits'; did you mean 'mnist'"):
        embedded.load("mnits")
    with pytest.raises(UnknownNameError, match="unknown embedded benchmark 'cifar7'; did you mean 'cifar6'"):
        embedded.load("cifar7/mnist")


@pytest.mark.parametrize("name", ["mnist-1.webp", "images.json"])
def test_a_damaged_file_is_reported_in_one_line(name: str, tmp_path: Path) -> None:
    for file in ("manifest.json", "images.json", "mnist-0.webp", "mnist-1.webp"):
        shutil.copy(embedded.CIFAR6 / file, tmp_path / file)
    content = bytearray((tmp_path / name).read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / name).write_bytes(content)
    with pytest.raises(StoreError, match=f"^[^\n]*{name}[^\n]*reinstall idness$"):
        embedded.load("mnist", root=tmp_path)

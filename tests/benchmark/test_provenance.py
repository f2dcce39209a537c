from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from idness.benchmark.provenance import Known, duplicates, peak_memory, told
from idness.core.wording import without_folder

ROLES = ("id_train", "id_val", "id_test", "ood_val", "near", "far")
MAY_SHARE = {("id_train", "id_val"), ("near", "far")}


def hashes(role: str, *numbers: int) -> Known:
    digests = np.array([[number] * 16 for number in numbers], np.uint8).reshape(-1, 16)
    return Known(role, None, digests, np.arange(len(digests)))


@pytest.mark.parametrize(("first", "second"), [(a, b) for place, a in enumerate(ROLES) for b in ROLES[place + 1 :]])
def test_images_in_two_sets_are_found_where_they_spoil_the_result(first: str, second: str) -> None:
    """Known and OOD, or chosen on and tested on; what only learns, and what is only tested, may overlap."""
    found = duplicates({"one": hashes(first, 1, 2, 3, 3), "two": hashes(second, 3, 4, 2)})
    assert found == ([] if (first, second) in MAY_SHARE else [{"sets": ["one", "two"], "images": 2, "near": 0}])


def test_sets_without_a_common_image_are_not_listed() -> None:
    assert duplicates({"one": hashes("id_val", 1, 2), "two": hashes("near", 3), "three": hashes("far")}) == []


def test_no_folder_of_the_writers_machine_is_told(tmp_path: Path) -> None:
    assert without_folder(str(tmp_path / "net.py")) == "net.py"
    assert without_folder(f"{tmp_path / 'net.py'}:make") == "net.py:make"
    assert without_folder("torchvision:resnet18") == "torchvision:resnet18"
    assert without_folder("models/net.py:make") == "models/net.py:make"
    assert without_folder(f"--data={tmp_path / 'my images'}") == "--data=my images"
    assert without_folder(f"{tmp_path}/net.py:make(file='{tmp_path}/a.txt', n=2)") == "net.py:make(file='a.txt', n=2)"
    assert without_folder(f"ebo,{tmp_path}/net.py:Mine") == "ebo,net.py:Mine"
    assert without_folder("name=../one/results,~/two") == "name=../one/results,~/two"


def test_what_is_told_of_two_sets() -> None:
    assert (
        told({"sets": ["a", "b"], "images": 2, "near": 1})
        == "2 images are in both a and b; 1 image is nearly the same in a and b"
    )
    assert told({"sets": ["a", "b"], "images": 2}) == "2 images are in both a and b"  # as version 0.1 wrote it


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux alone counts the parent's memory")
def test_the_peak_of_memory_is_that_of_this_process_alone() -> None:
    held = np.ones(60_000_000)  # 480 MB, which a process that is started from here begins with, as getrusage counts
    code = "from idness.benchmark.provenance import peak_memory; print(peak_memory())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 10**7 < int(done.stdout) < peak_memory() - held.nbytes / 2

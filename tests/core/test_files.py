from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from idness.core.errors import StoreError
from idness.core.files import OutputFolder, atomic_path, atomic_write, check_writable, locked, sha256


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_in_one_step(tmp_path):
    target = tmp_path / "deep" / "a.txt"
    assert atomic_write(target, "one") == target
    atomic_write(target, b"two")
    assert target.read_text() == "two"
    assert names(target.parent) == ["a.txt"]
    assert sha256(target) == "3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3"


def test_an_output_folder_overwrites_and_deletes_only_what_it_wrote(tmp_path):
    folder = OutputFolder(tmp_path / "out")
    folder.write({"a.txt": "one", "b.txt": "two"})
    (tmp_path / "out" / "c.txt").write_text("mine")
    with pytest.raises(StoreError, match=r"c.txt: exists and was not written by idness"):
        folder.write({"a.txt": "three", "c.txt": "ours"})
    folder.remove(["b.txt", "c.txt"])
    assert names(tmp_path / "out") == [".idness.json", "a.txt", "c.txt"]
    assert [(tmp_path / "out" / name).read_text() for name in ("a.txt", "c.txt")] == ["one", "mine"]
    OutputFolder(tmp_path / "out", force=True).write({"c.txt": "ours"})
    assert folder.files == {"a.txt", "c.txt"}
    (tmp_path / "mine.txt").write_text("mine")
    folder.record(["../mine.txt", "a.txt"])  # a listing that was forged
    folder.remove(["../mine.txt", "a.txt"])
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_after_a_failure_the_old_file_is_there_and_nothing_else(tmp_path):
    target = atomic_write(tmp_path / "a.txt", "old")
    with pytest.raises(ZeroDivisionError), atomic_path(target) as part:
        part.write_text("half")
        _ = 1 / 0
    assert target.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("written", [0, 1, 2])
def test_a_full_disk_leaves_an_output_folder_as_it_was(written, tmp_path, monkeypatch):
    folder, write, replace, calls = OutputFolder(tmp_path), Path.write_bytes, Path.replace, []
    folder.write({"a": "old", "b": "old", "c": "old"})

    def full(self: Path, data: bytes) -> int:
        calls.append(self)
        if len(calls) > written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(self, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StoreError, match=r"cannot write .*: No space left on device; free space"):
        folder.write({"a": "new", "b": "new", "c": "new"})
    assert [(tmp_path / name).read_text() for name in "abc"] == ["old"] * 3
    assert names(tmp_path) == [".idness.json", "a", "b", "c"]
    monkeypatch.setattr(Path, "write_bytes", write)
    monkeypatch.setattr(Path, "replace", lambda self, to: calls.append(to.name) or replace(self, to))
    folder.write({"b": "new", "a": "new"})
    assert calls[-2:] == ["b", "a"]


def test_a_folder_is_looked_at_without_being_made(tmp_path):
    check_writable(tmp_path / "a" / "b")
    assert not list(tmp_path.iterdir())
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(StoreError, match="link is not a folder"):
        check_writable(tmp_path / "link")


@pytest.mark.fault(
    "a process is killed while it writes", does="its temporary file (.part) is removed by a write at least a day later"
)
def test_leftovers_of_killed_processes_are_removed_a_day_later(tmp_path: Path) -> None:
    code = (
        "import os, sys; from idness.core.files import atomic_path\n"
        "with atomic_path(sys.argv[1]) as part:\n    part.write_bytes(b'half')\n    os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "gone.bin")], check=False)
    (left,) = tmp_path.iterdir()
    assert left.suffix == ".part"
    (tmp_path / ".someone.part").write_bytes(b"x")  # not ours to remove
    for age, kept in ((0, {left.name}), (10**6, set())):
        for path in (left, tmp_path / ".someone.part"):
            os.utime(path, (time.time() - age,) * 2)
        atomic_write(tmp_path / "mine.bin", b"mine")
        assert {*names(tmp_path)} == {".someone.part", "mine.bin", *kept}


HOLDS = """
import sys, time, pathlib
from idness.core.files import locked
with locked(pathlib.Path(sys.argv[1])):
    print(1, flush=True)
    time.sleep(60)
"""


def test_a_locked_folder_is_free_after_its_process_was_killed(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    with holder.stdout:
        holder.stdout.readline()
        with pytest.raises(StoreError, match="another process is writing to it"), locked(tmp_path):
            pass
        holder.kill()
        holder.wait()
    with locked(tmp_path):
        pass
    assert not list(tmp_path.iterdir())

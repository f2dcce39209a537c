from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from idness.core.errors import StoreError
from idness.core.files import alone_in, atomic_path, atomic_write, check_writable, sha256


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_in_one_step(tmp_path):
    target = tmp_path / "deep" / "a.txt"
    assert atomic_write(target, "one") == target
    atomic_write(target, b"two")
    assert target.read_text() == "two"
    assert names(target.parent) == ["a.txt"]
    assert sha256(target) == "3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3"


@pytest.mark.parametrize("mask", [0o077, 0o022])
def test_the_umask_is_honoured(mask, tmp_path):
    before = os.umask(mask)
    try:
        target = atomic_write(tmp_path / "a.txt", "one")
    finally:
        os.umask(before)
    assert target.stat().st_mode & 0o777 == 0o666 & ~mask


def test_after_a_failure_the_old_file_is_there_and_nothing_else(tmp_path):
    target = atomic_write(tmp_path / "a.txt", "old")
    with pytest.raises(ZeroDivisionError), atomic_path(target) as part:
        part.write_text("half")
        _ = 1 / 0
    assert target.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_a_full_disk_is_told_in_one_line(tmp_path, monkeypatch):
    def full(self: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StoreError, match=r"cannot write .*a.txt: No space left on device; free space"):
        atomic_write(tmp_path / "a.txt", "new")
    assert names(tmp_path) == []


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write"):
        atomic_write(tmp_path / "file" / "a.txt", "new")


def test_a_folder_is_looked_at_without_being_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_writable(tmp_path / "a" / "b")
    check_writable(tmp_path)
    assert not list(tmp_path.iterdir())

    def refuse(**_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with pytest.raises(
        StoreError, match=r"cannot write .*b: Read-only file system; free space or choose another folder"
    ):
        check_writable(tmp_path / "a" / "b")


@pytest.mark.fault(
    "a process is killed while it writes", does="what it left (.part) goes at the next write into that folder"
)
def test_leftovers_of_killed_processes_go_and_those_of_running_ones_stay(tmp_path: Path) -> None:
    code = (
        "import os, sys; from idness.core.files import atomic_path\n"
        "with atomic_path(sys.argv[1]) as part:\n    part.write_bytes(b'half')\n    os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "gone.bin")], check=False)
    (left,) = tmp_path.iterdir()
    assert left.suffix == ".part"
    with atomic_path(tmp_path / "mine.bin") as part:
        part.write_bytes(b"mine")
        assert not left.exists()
        atomic_write(tmp_path / "other.bin", b"other")
        assert part.exists()  # this process runs
    (tmp_path / ".someone.part").write_bytes(b"x")  # not ours to remove
    atomic_write(tmp_path / "mine.bin", b"again")
    assert sorted(file.name for file in tmp_path.iterdir()) == [".someone.part", "mine.bin", "other.bin"]


HOLDS = """
import os, sys, time
from pathlib import Path
from idness.core.files import alone_in
with alone_in(Path(sys.argv[1])):
    if os.fork() == 0:  # as a process that reads images, which sees only after seconds that its parent is gone
        print(os.getpid(), flush=True)
        time.sleep(60)
        os._exit(0)
    time.sleep(60)
"""


def test_a_folder_is_free_as_soon_as_the_process_that_had_it_is_killed(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    child = int(holder.stdout.readline())
    try:
        with pytest.raises(StoreError, match="another process is writing into it"), alone_in(tmp_path):
            pass
        holder.kill()
        holder.wait()
        os.kill(child, 0)  # it lives on
        with alone_in(tmp_path):
            pass
    finally:
        holder.kill()
        os.kill(child, signal.SIGKILL)
        holder.stdout.close()

"""`--engine ray`: real actors in real processes, one local Ray for all tests of this file."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow.parquet
import pytest
import tiny_net

from idness.activations import extract as extraction
from idness.benchmark.runner import run
from idness.benchmark.settings import Settings
from idness.cluster import pool, session
from idness.guard import Guard, scoring
from idness.guard.table import MANIFEST
from tests.cli.running import PROCESS, idness
from tests.pictures import world

os.environ.setdefault("RAY_AUTH_MODE", "token")  # as a local Ray has it; read once, when Ray is imported
pytest.importorskip("ray")


HOST = """
import sys
from idness.cluster.session import Pool, connected
with connected(Pool(actors=2)) as ray:
    print(ray.get_runtime_context().gcs_address, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a local Ray of two cores, which a process of its own has started; it ends with it."""
    host = subprocess.Popen([sys.executable, "-c", HOST], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert host.stdin is not None
    assert host.stdout is not None
    with host:
        found = host.stdout.readline().strip()
        assert found
        yield found
        host.stdin.close()


@pytest.fixture(autouse=True)
def small_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extraction, "SHARD", 20)
    monkeypatch.setattr(scoring, "SHARD", 20)


@pytest.fixture
def saved(guard: Guard, tmp_path: Path) -> Path:
    return guard.save(tmp_path / "guard", bundle=True)


WATCHED = """

import os, resource, sys, time
from pathlib import Path

class Watched(Tiny):
    seconds, folder = 0.0, ""

    def forward(self, images):
        time.sleep(self.seconds)
        if self.folder:
            (Path(self.folder) / str(os.getpid())).touch()
        return super().forward(images)

def watched(seconds=0.0, folder="", full=False):
    model = Watched()
    model.seconds, model.folder = seconds, folder
    if full and "default_worker" in sys.argv[0]:  # the program that Ray's workers run
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # what is written beyond fails, as on a full disk
    return model
"""
"""A network that takes its time, says in which process it runs, and can be told to run out of disk there."""


class Net:
    """Keeps where the network's file is."""

    file = Path()


@pytest.fixture(scope="module", autouse=True)
def net_file(tmp_path_factory: pytest.TempPathFactory) -> None:
    Net.file = tmp_path_factory.mktemp("net") / "watched_net.py"
    Net.file.write_text(Path(tiny_net.__file__).read_text() + WATCHED)


def network(**options: object) -> str:
    shown = (str(value) if isinstance(value, Path) else value for value in options.values())
    return f"{Net.file}:watched({', '.join(f'{name}={value!r}' for name, value in zip(options, shown, strict=True))})"


def rows(out: Path) -> list[dict[str, Any]]:
    return [row for part in sorted(out.glob("part-*.parquet")) for row in pyarrow.parquet.read_table(part).to_pylist()]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_store_filled_by_actors_is_that_of_one_process_and_the_cache_of_bench(tmp_path: Path, address: str) -> None:
    place = world(tmp_path)
    weights = ("--weights", tmp_path / "weights.safetensors")
    model = f"{tmp_path}/net.py:make"
    alone = idness("extract", model, place, *weights, "-o", tmp_path / "alone")
    many = idness(
        "extract",
        model,
        place,
        *weights,
        "-o",
        tmp_path / "many",
        "--engine",
        "ray",
        "--address",
        address,
        "--actors",
        1,
    )
    assert many.returncode == 0, many.stderr
    assert many.stdout == alone.stdout
    assert many.stderr.splitlines() == [line.replace("alone", "many") for line in alone.stderr.splitlines()]
    assert contents(tmp_path / "many") == contents(tmp_path / "alone")
    settings = Settings(weights=tmp_path / "weights.safetensors", cache=tmp_path / "many", methods=["ebo"])
    assert run(place, model, settings).time["images"] == 0


@pytest.mark.fault(
    "kill -9 of a Ray actor in the middle of a run",
    does="every image has one row all the same; the bytes are those of one process",
)
def test_an_actor_that_is_killed_loses_and_doubles_nothing(
    saved: Path, id_folder: Path, tmp_path: Path, address: str
) -> None:
    folder, pids = tmp_path / "pictures", tmp_path / "pids"
    shutil.copytree(id_folder, folder)
    (folder / "red" / "0003.png").write_bytes(b"junk")
    pids.mkdir()
    killed: list[int] = []

    def kill() -> None:
        while not killed and len(list(out.glob("part-*"))) < 2:
            time.sleep(0.02)
        if killed:  # the run has ended by itself
            return
        killed.append(int(next(pid.name for pid in pids.iterdir() if int(pid.name) != os.getpid())))
        os.kill(killed[0], signal.SIGKILL)

    words = ("score", saved, "--model", network(seconds=0.1, folder=pids), folder, "--batch", 10)
    out = tmp_path / "many"
    killer = Thread(target=kill, daemon=True)
    killer.start()
    done = idness(*words, "-o", out, "--engine", "ray:eager", "--address", address, "--actors", 2)
    killed.append(0)
    killer.join()
    assert done.returncode == 0, done.stderr
    assert len(list(pids.iterdir())) >= 3  # another took its place
    names = [str(path) for each in sorted(folder.iterdir()) for path in sorted(each.iterdir())]
    assert [row["path"] for row in rows(out)] == names
    [unread] = [row for row in rows(out) if row["problem"]]
    assert unread["path"].endswith("red/0003.png")
    assert "1 unread; the first unread, " in done.stdout
    assert (
        idness(
            "score", saved, "--model", network(), folder, "--batch", 10, "-o", tmp_path / "one", "--engine", "eager"
        ).returncode
        == 0
    )
    assert contents(out) == contents(tmp_path / "one")


@pytest.mark.long
@pytest.mark.fault(
    "kill -9 of the driver of a Ray run", does="--resume goes on; no finished part is made again, no process is left"
)
def test_a_driver_that_is_killed_is_gone_on_from(saved: Path, id_folder: Path, tmp_path: Path) -> None:
    code = "from idness.guard import scoring; scoring.SHARD = 20; from idness.cli import main; main()"
    out, pids = tmp_path / "out", tmp_path / "pids"
    pids.mkdir()
    words = [
        "score",
        saved,
        "--model",
        network(seconds=0.3, folder=pids),
        id_folder,
        "-o",
        out,
        "--engine",
        "ray:eager",
        "--actors",
        1,
    ]
    process = subprocess.Popen([sys.executable, "-c", code, *map(str, words)], cwd=tmp_path)
    while len(list(out.glob("part-*"))) < 3:
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    end = time.monotonic() + 60
    while any(Path(f"/proc/{pid.name}").exists() for pid in pids.iterdir()):
        assert time.monotonic() < end, "a worker outlives its driver"
        time.sleep(0.1)
    kept = {path.name: path.stat().st_mtime_ns for path in out.glob("part-*")}
    assert 3 <= len(kept) < 12
    assert not (out / MANIFEST).exists()
    assert "--resume continues" in idness(*words).stderr
    again = idness(*words, "--resume")
    assert again.returncode == 0, again.stderr
    assert {name: (out / name).stat().st_mtime_ns for name in kept} == kept
    assert len(rows(out)) == 240
    assert {row["path"] for row in rows(out)} == {str(path) for path in id_folder.rglob("*.png")}
    assert not [path for path in out.iterdir() if path.suffix == ".part"]


def refused(done: subprocess.CompletedProcess[str], *said: str) -> None:
    assert done.returncode == 2
    [line] = [line for line in done.stderr.splitlines() if not line.startswith(("preprocessing: ", "engine: "))]
    assert all(part in line for part in said), line


@contextmanager
def before_ray(monkeypatch: pytest.MonkeyPatch, change: Any) -> Iterator[None]:
    """Change something once the driver has looked at everything, and before any worker has."""
    real = pool.connected

    def connecting(*arguments: Any) -> Any:
        change()
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(pool, "connected", connecting)
        yield


def extracted(address: str, tmp_path: Path, weights: Path, *more: object) -> subprocess.CompletedProcess[str]:
    words = ("extract", network(), tmp_path / "pictures", "--weights", weights, "-o", tmp_path / "out")
    return idness(*words, "--engine", "ray:eager", "--address", address, "--actors", 1, *more)


@pytest.fixture
def pictures(ood_folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(ood_folder, tmp_path / "pictures")


@pytest.mark.long
@pytest.mark.fault(
    "a Ray worker has other versions of Python or a library", does="one line with both versions; nothing is written"
)
def test_other_versions_on_a_worker(
    pictures: Path, weights: Path, tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = session.versions()
    monkeypatch.setattr(pool, "versions", lambda: here | {"torch": "0.1"})
    refused(
        extracted(address, tmp_path, weights),
        f"has torch {here['torch']}, this machine 0.1; install the same versions everywhere",
    )
    assert not list((tmp_path / "out").rglob("*.safetensors"))


@pytest.mark.long
@pytest.mark.fault(
    "a model file is missing on a Ray worker, or another one lies there",
    does="one line with the file; nothing is written",
)
def test_a_model_file_that_a_worker_lacks(
    pictures: Path, weights: Path, tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Path(shutil.copy(weights, tmp_path / "own.safetensors"))
    with before_ray(monkeypatch, own.unlink):
        refused(extracted(address, tmp_path, own), f"no weights at {own}", "every worker needs the same files")
    shutil.copy(weights, own)

    def other() -> None:
        from safetensors.torch import load_file, save_file

        save_file({name: value + 1 for name, value in load_file(own).items()}, own)

    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    with before_ray(monkeypatch, other):
        refused(extracted(address, tmp_path, own), "is another network here than where the work comes from")
    assert not list((tmp_path / "out").rglob("*.safetensors"))


@pytest.mark.long
@pytest.mark.fault(
    "a Ray worker sees no images, or no output",
    does="one line; images that are elsewhere are not taken for damaged",
)
def test_folders_that_a_worker_does_not_see(
    pictures: Path, weights: Path, tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with before_ray(monkeypatch, lambda: pictures.rename(tmp_path / "elsewhere")):
        refused(
            extracted(address, tmp_path, weights),
            "does not see the images of pictures; put them where every worker sees them",
        )
    (tmp_path / "elsewhere").rename(pictures)

    def unseen() -> None:
        for mark in (tmp_path / "out").glob(".*.part"):
            mark.unlink()

    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    with before_ray(monkeypatch, unseen):
        refused(
            extracted(address, tmp_path, weights), f"does not see {tmp_path / 'out'}; give a folder that all machines"
        )
    assert not list((tmp_path / "out").rglob("*.safetensors"))


@pytest.mark.long
@pytest.mark.fault(
    "the disk of a Ray worker is full", does="one line; what is done is kept, nothing is half-written, --resume goes on"
)
def test_a_full_disk_on_a_worker(saved: Path, id_folder: Path, tmp_path: Path, address: str) -> None:
    out = tmp_path / "out"
    words = ("score", saved, id_folder / "red", "-o", out, "--engine", "ray:eager", "--address", address, "--actors", 1)
    refused(idness(*words, "--model", network(full=True)), "cannot write", "File too large", "go on with --resume")
    assert not out.exists() or not list(out.iterdir())
    assert idness(*words, "--model", network(), "--resume").returncode == 0
    assert len(rows(out)) == 60


@pytest.mark.long
def test_tables_and_shards_are_read_by_actors_as_by_one_process(
    pictures: Path, saved: Path, tmp_path: Path, address: str
) -> None:
    import io
    import tarfile

    import pyarrow

    files = sorted(pictures.iterdir())
    table = pyarrow.table({"image": [path.read_bytes() for path in files]})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet", row_group_size=7)
    with tarfile.open(tmp_path / "s.tar", "w") as archive:
        for path in files:
            member = tarfile.TarInfo(path.name)
            member.size = path.stat().st_size
            archive.addfile(member, io.BytesIO(path.read_bytes()))
    given = (tmp_path / "t.parquet", (tmp_path / "s.tar").as_uri(), pictures.as_uri())
    words = ("score", saved, "--model", network(), *given)
    many = idness(*words, "-o", tmp_path / "many", "--engine", "ray", "--address", address)
    assert many.returncode == 0, many.stderr
    assert idness(*words, "-o", tmp_path / "one").returncode == 0
    assert contents(tmp_path / "many") == contents(tmp_path / "one")
    assert len(rows(tmp_path / "many")) == 90


@pytest.mark.fault(
    "a Ray address that does not answer, or something else does",
    does="one line within ten seconds, before anything is loaded",
)
def test_an_address_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "WAIT", 0.3)

    class Page(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadingHTTPServer(("127.0.0.1", 0), Page) as page:
        Thread(target=page.serve_forever, daemon=True).start()
        with socket.create_server(("127.0.0.1", 0)) as closed:
            free = closed.getsockname()[1]
        said = {
            free: "no Ray answers at --address 127.0.0.1:{} (Connection refused)",
            silent.getsockname()[1]: "no Ray answers at --address 127.0.0.1:{} (waited 0.3 s)",
            page.server_port: "what answers at --address 127.0.0.1:{} is not Ray",
        }
        for port, message in said.items():
            done = idness(
                "extract",
                "cifar6:base",
                ".",
                "-o",
                "out",
                "--engine",
                "ray",
                "--address",
                f"127.0.0.1:{port}",
                cwd=tmp_path,
            )
            refused(done, message.format(port))
        page.shutdown()
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--actors", "2"], "--address, --actors and --gpus-per-actor are for --engine ray"),
        (["--engine", "ray:nosuch"], "engine must be one of"),
        (["--engine", "ray", "--actors", "0"], "--actors"),
        (["--engine", "ray", "-o", "taken"], "taken exists; --resume continues"),
    ],
)
def test_mistakes_are_one_line_before_ray_is_started(more: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    done = idness("extract", "cifar6:base", "embedded:mnist", "-o", "out", *more, cwd=tmp_path)
    refused(done, message)
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_more_gpus_than_there_are_is_one_line(pictures: Path, weights: Path, tmp_path: Path, address: str) -> None:
    refused(
        extracted(address, tmp_path, weights, "--gpus-per-actor", "1", "--device", "cpu"),
        "the cluster has 0 GPUs, each actor asks for 1",
    )


@pytest.mark.long
def test_the_command_starts_ray_by_itself_quietly_and_leaves_nothing(
    saved: Path, id_folder: Path, tmp_path: Path
) -> None:
    words = ["score", saved, "--model", network(), id_folder, "-o", tmp_path / "out", "--engine", "ray"]
    done = subprocess.run([*PROCESS, *map(str, words)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"wrote {tmp_path / 'out'}\n"

"""`--engine ray`: actors in this process, then real ones in processes of a local Ray that the tests of this file share."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import numpy as np
import pytest
import tiny_net
import torch
from safetensors.torch import load_file, save_file

from idness.activations import extract as extraction
from idness.activations.extract import plan_spans
from idness.benchmark.extraction import Extraction, prepare_extraction
from idness.benchmark.protocol import Settings
from idness.benchmark.runner import run
from idness.cluster import Actor, Pool, extractor, versions
from idness.core.errors import ClusterError, OptionError
from idness.core.files import LISTING, marked
from idness.guard import Guard, score
from tests.cli.running import idness
from tests.guard.conftest import rows
from tests.pictures import world

os.environ.setdefault("RAY_AUTH_MODE", "token")  # as for a local Ray; read once, when Ray is imported

HOST = """
import sys
from idness.cluster import Pool, connected
with connected(Pool(actors=2)) as ray:
    print(ray.get_runtime_context().gcs_address, flush=True)
    sys.stdin.read()
"""
WATCHED = """

import os, time
from pathlib import Path

class Watched(Tiny):
    def __init__(self, seconds, folder):
        super().__init__()
        self.seconds, self.folder = seconds, folder

    def forward(self, images):
        time.sleep(self.seconds)
        if self.folder:
            (Path(self.folder) / str(os.getpid())).touch()
        return super().forward(images)

watched = Watched
"""
"""A network that takes its time and records the process it runs in."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a local Ray with two cores, in a process of its own."""
    pytest.importorskip("ray")
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
    monkeypatch.setattr(score, "SHARD", 20)


@pytest.fixture
def saved(guard: Guard, tmp_path: Path) -> Path:
    return guard.save(tmp_path / "guard", bundle=True)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """The name of the network, given its seconds per batch and the folder of its records."""
    file = tmp_path_factory.mktemp("net") / "watched_net.py"
    file.write_text(Path(tiny_net.__file__).read_text() + WATCHED)
    return lambda seconds=0.0, folder="": f"{file}:watched(seconds={seconds}, folder={str(folder)!r})"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def refused(done: subprocess.CompletedProcess[str], *said: str) -> None:
    assert done.returncode == 2
    [line] = [line for line in done.stderr.splitlines() if not line.startswith(("preprocessing: ", "engine: "))]
    assert all(part in line for part in said), line


@pytest.fixture
def job(net_spec: str, weights: Path, id_folder: Path, tmp_path: Path) -> Extraction:
    own = Path(shutil.copy(weights, tmp_path / "own.safetensors"))
    return prepare_extraction(net_spec, [str(id_folder)], Settings(weights=own, cache=tmp_path / "store"))


def actor(job: Extraction, mark: Path, **versions_: str) -> Actor:
    mark.parent.mkdir(exist_ok=True)
    mark.touch()
    return Actor(extractor(job, Pool()), 1, mark, versions() | versions_)


@pytest.mark.fault(
    "a Ray worker differs from the driver: versions, model file, visible images or output folder",
    does="one line that names the difference; nothing is written",
)
def test_an_actor_refuses_another_network_other_versions_and_another_folder(
    job: Extraction, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = list[int]()
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    with marked(tmp_path / "out") as name:
        mark = tmp_path / "out" / name
        assert actor(job, mark).refusal == ""
    assert threads == [1]  # as many as the driver has: with another number, sums are rounded differently
    assert not mark.exists()
    assert re.search("has numpy .+, but this machine has 0.1; install the same", actor(job, mark, numpy="0.1").refusal)
    assert "has python " in actor(job, mark, python="2.7").refusal
    unseen = Actor(extractor(job, Pool()), 1, tmp_path / "elsewhere" / "mark", versions())
    assert f"cannot access {tmp_path / 'elsewhere'}; use a folder" in unseen.refusal
    [(_, images)] = job.sets
    images.present = lambda: False  # type: ignore[method-assign]
    [span, *_] = plan_spans(job.network, images, None, job.store)
    said = actor(job, mark).do(0, True, span, images, (), None)[1]["refusal"]
    assert f"cannot access the images of {images.source}; use a folder that every worker can access" in said
    own = tmp_path / "own.safetensors"
    save_file({name: value + 1 for name, value in load_file(own).items()}, own)
    assert "differs from the driver's network" in actor(job, mark).refusal
    own.unlink()
    assert re.search("no weights at .*; every worker needs the same files", actor(job, mark).refusal)


def test_a_pool_is_as_large_as_the_cluster_or_as_asked() -> None:
    ray = SimpleNamespace(cluster_resources=lambda: {"CPU": 8.0, "GPU": 2.0})
    assert (Pool().size(ray), Pool(actors=3).size(ray), Pool(gpus=0.5).size(ray)) == (8, 3, 4)
    assert (Pool().size(ray, 4), Pool(gpus=1).size(ray, 4)) == (2, 2)
    with pytest.raises(ClusterError, match="has 8 CPUs and each actor needs 1, which is not enough for 9 actors"):
        Pool(actors=9).size(ray)
    with pytest.raises(ClusterError, match="has 8 CPUs and each actor needs 4, .+ or set OMP_NUM_THREADS=1"):
        Pool(actors=3).size(ray, 4)
    with pytest.raises(ClusterError, match="has 2 GPUs and each actor needs 4, which is not enough for 1 actors"):
        Pool(gpus=4).size(ray)
    with pytest.raises(OptionError, match="must be a whole number of at least 1"):
        Pool(actors=0)


def test_a_store_filled_by_actors_is_that_of_one_process_and_the_cache_of_bench(tmp_path: Path, address: str) -> None:
    place = world(tmp_path)
    with np.load(tmp_path / "test.npz") as test:
        rows = [*np.arange(1024) % 60, 1, 2, 3]  # two parts, which begin with different labels
        np.savez(tmp_path / "test.npz", images=test["images"][rows], labels=test["labels"][rows])
    weights = tmp_path / "weights.safetensors"
    model = f"{tmp_path}/net.py:make"
    words = ("extract", model, place, "--weights", weights, "-o")
    alone = idness(*words, tmp_path / "alone")
    many = idness(*words, tmp_path / "many", "--engine", "ray", "--address", address, "--actors", 1)
    assert many.returncode == 0, many.stderr
    assert many.stdout == alone.stdout
    assert many.stderr.splitlines() == [line.replace("alone", "many") for line in alone.stderr.splitlines()]
    for store in ("alone", "many"):  # which remembers the hashes of files that are a few seconds old
        shutil.rmtree(tmp_path / store / "stamps", ignore_errors=True)
    assert contents(tmp_path / "many") == contents(tmp_path / "alone")
    settings = Settings(weights=weights, cache=tmp_path / "many", methods=["ebo"])
    assert run(place, model, settings).time["images"] == 0


@pytest.mark.fault(
    "kill -9 of a Ray actor in the middle of a run",
    does="every image still has exactly one row; the files are those of one process",
)
def test_a_killed_actor_loses_and_doubles_nothing(
    saved: Path, id_folder: Path, network: Callable[..., str], tmp_path: Path, address: str
) -> None:
    folder, pids, out = tmp_path / "pictures", tmp_path / "pids", tmp_path / "many"
    shutil.copytree(id_folder, folder)
    (folder / "red" / "0003.png").write_bytes(b"junk")
    pids.mkdir()
    killed: list[int] = []

    def kill() -> None:
        while not killed and len(list(out.glob("part-*"))) < 2:
            time.sleep(0.02)
        if killed:  # the run has ended
            return
        killed.append(int(next(pid.name for pid in pids.iterdir() if int(pid.name) != os.getpid())))
        os.kill(killed[0], signal.SIGKILL)

    words = ("score", saved, folder, "--batch-size", 10, "--model")
    killer = Thread(target=kill, daemon=True)
    killer.start()
    cluster_words = ("--engine", "ray:eager", "--address", address, "--actors", 2)
    done = idness(*words, network(seconds=0.1, folder=pids), "-o", out, *cluster_words)
    killed.append(0)
    killer.join()
    assert done.returncode == 0, done.stderr
    assert len(list(pids.iterdir())) >= 3  # another one replaced it
    names = [str(path) for each in sorted(folder.iterdir()) for path in sorted(each.iterdir())]
    assert [row["image"] for row in rows(out)] == names
    [unread] = [row for row in rows(out) if row["error"]]
    assert unread["image"].endswith("red/0003.png")
    assert "1 unreadable; the first: " in done.stdout
    assert idness(*words, network(), "-o", tmp_path / "one", "--engine", "eager").returncode == 0
    assert contents(out) == contents(tmp_path / "one")


@pytest.mark.long
@pytest.mark.fault(
    "kill -9 of the driver of a Ray run",
    does="--resume continues; no finished part is computed again, no process is left",
)
def test_a_run_whose_driver_was_killed_can_be_resumed(
    saved: Path, id_folder: Path, network: Callable[..., str], tmp_path: Path
) -> None:
    pytest.importorskip("ray")
    code = "from idness.guard import score; score.SHARD = 20; from idness.cli import main; main()"
    out, pids = tmp_path / "out", tmp_path / "pids"
    pids.mkdir()
    words = ["score", saved, "--model", network(seconds=0.3, folder=pids), id_folder, "-o", out]
    words += ["--engine", "ray:eager", "--actors", 1]
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
    assert json.loads((out / LISTING).read_text())["counts"] is None
    assert "--resume to continue" in idness(*words).stderr
    again = idness(*words, "--resume")
    assert again.returncode == 0, again.stderr
    assert again.stderr == f"wrote {out}\n"
    assert {name: (out / name).stat().st_mtime_ns for name in kept} == kept
    assert {row["image"] for row in rows(out)} == {str(path) for path in id_folder.rglob("*.png")}
    assert len(rows(out)) == 240
    assert not [path for path in out.iterdir() if path.suffix == ".part"]


@pytest.mark.fault("a Ray address that does not respond", does="one line within ten seconds")
def test_an_address_that_does_not_answer(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    words = ("extract", "cifar6:base", ".", "-o", "out", "--engine", "ray", "--address", f"127.0.0.1:{port}")
    refused(idness(*words, cwd=tmp_path), f"no Ray cluster responds at --address 127.0.0.1:{port} (Connection refused)")
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--actors", "2"], "--address, --actors and --gpus-per-actor need --engine ray"),
        (["--engine", "ray:nosuch"], "engine must be one of"),
        (["--engine", "ray", "--actors", "0"], "--actors"),
        (["--engine", "ray", "-o", "taken"], "taken exists; pass --resume to continue"),
    ],
)
def test_mistakes_are_one_line_before_ray_is_started(more: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    refused(idness("extract", "cifar6:base", "embedded:mnist", "-o", "out", *more, cwd=tmp_path), message)
    assert not (tmp_path / "out").exists()

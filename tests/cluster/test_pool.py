"""What an actor does, tried in this process; tests/cluster/test_ray.py has the real ones."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from idness.activations import extract as extraction
from idness.activations.extract import plan
from idness.benchmark.extraction import Extraction, prepare_extraction, run_extraction
from idness.benchmark.settings import Settings
from idness.cluster.extracting import SetSpans, _work
from idness.cluster.pool import _differs, _hidden
from idness.cluster.session import Pool, first_line, versions
from idness.core.errors import ClusterError, ModelError, OptionError
from idness.core.files import marked


@pytest.fixture
def job(net_spec: str, weights: Path, id_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Extraction:
    monkeypatch.setattr(extraction, "SHARD", 32)
    own = tmp_path / "own.safetensors"
    own.write_bytes(weights.read_bytes())
    return prepare_extraction(net_spec, [str(id_folder)], Settings(weights=own, cache=tmp_path / "store"))


def test_spans_that_are_done_apart_are_the_shards_of_one_process(
    job: Extraction, net_spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [(_, images)] = job.sets
    known = job.network.labels_of(images)
    spans = list(plan(job.network, images, known, job.store))
    held = SetSpans([(images, known, spans)], [(0, place) for place in range(len(spans))], frozenset())
    do = _work(job, Pool()).open()
    found = {span.key: do(held.task(number))["sha256"] for number, span in reversed(list(enumerate(spans)))}
    monkeypatch.setattr(type(job.network), "identity", job.network.identity)
    apart = {path.name: path.read_bytes() for path in (tmp_path / "store").rglob("*.safetensors")}
    assert sorted(apart) == sorted(f"{key}-{digest}.safetensors" for key, digest in found.items())
    for path in (tmp_path / "store").rglob("*.safetensors"):
        path.unlink()
    assert run_extraction(job)[0].ran == len(images)
    assert {path.name: path.read_bytes() for path in (tmp_path / "store").rglob("*.safetensors")} == apart


def test_an_actor_has_as_many_threads_as_the_driver(job: Extraction, net_spec: str) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        work = _work(job, Pool())
        torch.set_num_threads(1)
        work.open()
        assert (work.threads, torch.get_num_threads()) == (2, 2)  # with others, sums are rounded otherwise
    finally:
        torch.set_num_threads(before)


def test_another_network_at_the_same_place_is_refused(job: Extraction, net_spec: str, tmp_path: Path) -> None:
    own = tmp_path / "own.safetensors"
    save_file({name: value + 1 for name, value in load_file(own).items()}, own)
    with pytest.raises(ModelError, match="is another network here than where the work comes from"):
        _work(job, Pool()).open()


def test_other_versions_and_folders_are_told() -> None:
    here = versions()
    assert _differs(here) == ""
    assert f"has numpy {np.__version__}, this machine 0.1; install the same" in _differs(here | {"numpy": "0.1"})
    assert "has python " in _differs({"python": "2.7"})


def test_the_output_is_known_by_a_file_that_is_gone_afterwards(tmp_path: Path) -> None:
    with marked(tmp_path / "out") as mark:
        assert _hidden(str(tmp_path / "out"), mark) == ""
        assert "does not see" in _hidden(str(tmp_path / "elsewhere"), mark)
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "kept").touch()
    with marked(tmp_path / "out"):
        pass
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["kept"]


def test_a_pool_is_as_large_as_the_cluster_or_as_asked() -> None:
    cluster = SimpleNamespace(cluster_resources=lambda: {"CPU": 8.0, "GPU": 2.0})
    assert (Pool().size(cluster), Pool(actors=3).size(cluster), Pool(gpus=0.5).size(cluster)) == (8, 3, 4)
    assert (Pool().size(cluster, 4), Pool(gpus=1).size(cluster, 4)) == (2, 2)
    with pytest.raises(ClusterError, match="has 8 cores, each actor asks for 1: not enough for 9 actors"):
        Pool(actors=9).size(cluster)
    with pytest.raises(ClusterError, match="has 8 cores, each actor asks for 4: .+ or set OMP_NUM_THREADS=1"):
        Pool(actors=3).size(cluster, 4)
    with pytest.raises(ClusterError, match="has 2 GPUs, each actor asks for 4: not enough for 1 actors"):
        Pool(gpus=4).size(cluster)
    with pytest.raises(OptionError, match="must be a whole number of at least 1"):
        Pool(actors=0)


def test_a_page_of_an_error_becomes_a_line() -> None:
    page = "ray.exceptions.X\nTraceback (most recent call last):\n  File 'a'\nValueError: too much"
    assert first_line(RuntimeError(page)) == "ValueError: too much"
    assert first_line(RuntimeError("Version mismatch\nlong")) == "Version mismatch"
    lacking = f"{page}\nModuleNotFoundError: No module named 'idness'"
    assert "No module named 'idness' on a worker; install idness[ray]" in first_line(RuntimeError(lacking))
